// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llada_scratch/scratch_plan.h"

#include <algorithm>

#include "kernels/loss/token_loss.h"

namespace capstan {
namespace llada_scratch {
namespace {

constexpr int64_t kFloatBytes = 4;

// Bytes of the tensors that come and go.
struct Bytes {
  Bytes(const Config& c, int64_t samples, int64_t length,
        c10::ScalarType compute)
      : rows(samples * length),
        element(static_cast<int64_t>(c10::elementSize(compute))),
        x(rows * c.hidden_size() * element),
        inner(rows * c.intermediate_size() * element),
        norm(2 * rows * kFloatBytes),
        log_sum_exp(rows * c.num_attention_heads() * kFloatBytes) {}

  bool half() const { return element < kFloatBytes; }
  int64_t Wide(int64_t bytes) const { return bytes / element * kFloatBytes; }

  int64_t rows;
  int64_t element;
  int64_t x;      // [rows, hidden]
  int64_t inner;  // [rows, intermediate]
  int64_t norm;   // mean and 1 / standard deviation of each row
  int64_t log_sum_exp;
};

UnitMemory PlanEmbedding(const Config& c, const Bytes& b) {
  const bool dropout = c.dropout() > 0.0;
  const int64_t mask = dropout ? b.rows * c.hidden_size() : 0;
  UnitMemory unit;
  unit.output = b.x;
  // The sum, for the norm's backward; positions; the output.
  const int64_t positions = b.rows * static_cast<int64_t>(sizeof(int64_t));
  unit.kept = b.x + b.norm + positions + mask + b.x;
  // What is dropped from, and what is left before it is scaled; or both rows.
  unit.forward_workspace = dropout ? 2 * b.x : b.x;
  const int64_t largest = std::max(c.vocab_size(), c.max_sequence_length()) *
                          c.hidden_size() * b.element;
  // By then the mask, the sum and the output's gradient are gone. 16-bit types
  // are summed in float32.
  const int64_t wide = b.half() ? b.Wide(b.x) + b.Wide(largest) : 0;
  const int64_t weights = b.x + wide + largest - (2 * b.x + mask);
  unit.backward_workspace =
      std::max(dropout ? 2 * b.x : b.x, weights) - largest;
  return unit;
}

UnitMemory PlanLayer(const Config& c, const Bytes& b) {
  UnitMemory unit;
  unit.output = b.x;
  // The attention's input, q, k, v and what it mixes, the sum, the MLP's input
  // and, before and after GELU, its inner rows.
  unit.kept = 7 * b.x + 2 * b.inner + 2 * b.norm + b.log_sum_exp + unit.output;
  // What is added to the sum.
  unit.forward_workspace = b.x;
  // The gradients to the inner rows, and to the last matrix, which is as large
  // as any, and its bias.
  const int64_t bias = c.hidden_size() * b.element;
  unit.backward_workspace = std::max(b.inner + bias, b.x);
  return unit;
}

UnitMemory PlanHead(const Config& c, const Bytes& b) {
  // The bias goes as a column of the weight (CrossEntropySum).
  const int64_t width = c.hidden_size() + 1;
  const int64_t weight = c.vocab_size() * width;
  const int64_t row = c.vocab_size() * b.element;
  const int64_t most = std::max<int64_t>(1, kernels::kLogitsBytes / row);
  const int64_t pieces = (b.rows + most - 1) / most;
  const int64_t rows = (b.rows + pieces - 1) / pieces;
  const int64_t last = b.rows - (pieces - 1) * rows;
  UnitMemory unit;
  unit.output = kFloatBytes;
  unit.kept = unit.output + b.norm;
  // The widened rows, their gradient (float32), the widened weight, the last
  // piece's logits and the gradient of the pieces before.
  const int64_t so_far = pieces > 1 ? weight * kFloatBytes : 0;
  unit.logits_passing = b.rows * width * (b.element + kFloatBytes) +
                        weight * b.element + last * row + so_far;
  // In 16-bit types, products of widened logits with the weight, or the rows.
  const auto widened = [&](int64_t n) {
    return b.half() ? n * (c.vocab_size() + width) * kFloatBytes : 0;
  };
  unit.forward_workspace = b.x + b.rows * b.element;
  if (pieces > 1 && b.half()) {
    unit.forward_workspace += widened(rows) + weight * kFloatBytes;
  }
  const int64_t largest = c.vocab_size() * c.hidden_size() * b.element;
  unit.backward_workspace = widened(last) + weight * kFloatBytes +
                            b.rows * width * b.element - so_far - largest;
  if (b.half()) {
    // The sum, beside what it is rounded to: the gradient that strategies
    // count.
    unit.backward_workspace = std::max(
        unit.backward_workspace, weight * kFloatBytes - so_far - last * row);
  }
  return unit;
}

}  // namespace

std::vector<UnitMemory> PlanUnits(const Config& sizes, int64_t samples,
                                  int64_t length, c10::ScalarType compute) {
  const Bytes bytes(sizes, samples, length, compute);
  std::vector<UnitMemory> units = {PlanEmbedding(sizes, bytes)};
  for (int64_t i = 0; i < sizes.num_hidden_layers(); ++i) {
    units.push_back(PlanLayer(sizes, bytes));
  }
  units.push_back(PlanHead(sizes, bytes));
  return units;
}

}  // namespace llada_scratch
}  // namespace capstan
