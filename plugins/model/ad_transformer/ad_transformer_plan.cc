// SPDX-License-Identifier: Apache-2.0
//
// What a micro-batch makes each unit allocate: in float32 what the fused nodes
// say of themselves, else an estimate from the tensors that LibTorch's
// operators save in an encoder layer with dropout on the CPU.
#include <algorithm>

#include "plugins/model/ad_transformer/ad_transformer.h"
#include "plugins/model/ad_transformer/ad_transformer_weights.h"

namespace capstan {
namespace ad_transformer {
namespace {

struct Plan {
  const Sizes& sizes;
  const std::vector<ParameterSpec>& specs;
  int64_t samples;
  int64_t length;
  int64_t element;  // bytes
  bool fused;

  int64_t rows() const { return samples * length; }
  int64_t Rows(int64_t rows, int64_t width) const {
    return rows * width * element;
  }

  // Bytes of a unit's parameters without the largest.
  int64_t SmallerGradients(int unit) const {
    int64_t all = 0, largest = 0;
    for (const ParameterSpec& spec : specs) {
      if (spec.unit != unit) continue;
      all += spec.numel() * element;
      largest = std::max(largest, spec.numel() * element);
    }
    return all - largest;
  }
};

UnitMemory PlanEmbedding(const Plan& p) {
  const Sizes& s = p.sizes;
  UnitMemory unit;
  unit.output = p.Rows(p.rows(), s.embedding);
  unit.kept = unit.output + p.Rows(p.rows(), s.features());
  unit.backward_workspace = unit.output + p.SmallerGradients(0);
  if (!p.fused) {
    // The transitions' numbers as int64, and a few sums of vectors.
    unit.forward_workspace = p.rows() * s.features() * 8 + 3 * unit.output;
    unit.backward_workspace += 3 * unit.output;
  }
  return unit;
}

UnitMemory PlanLayer(const Plan& p, int64_t layer) {
  const Sizes& s = p.sizes;
  const bool last = layer + 1 == s.layers;
  const int64_t queries = last ? p.samples : p.rows();
  const int64_t e = s.embedding, f = s.feed_forward;
  UnitMemory unit;
  unit.output = p.Rows(queries, e);
  const int64_t gradients = unit.output + p.Rows(p.rows(), e) +
                            p.SmallerGradients(1 + static_cast<int>(layer));
  if (p.fused) {
    const kernels::EncoderBlockSizes sizes = kernels::FusedEncoderBlockSizes(
        p.samples, p.length, e, f, s.heads, last, s.dropout > 0.0);
    unit.kept = unit.output + sizes.kept;
    unit.forward_workspace = sizes.forward;
    unit.backward_workspace = sizes.backward + gradients;
    return unit;
  }
  // A head's scores, for each query as many as there are tokens.
  const int64_t scores = p.Rows(queries * s.heads, p.length);
  const int64_t dropped = s.dropout > 0.0 ? 1 : 0;
  unit.kept = p.Rows(p.rows(), 2 * e) +
              p.Rows(queries, (6 + 2 * dropped) * e + (2 + dropped) * f) +
              (1 + 2 * dropped) * scores;
  unit.forward_workspace = 3 * scores;
  unit.backward_workspace =
      gradients + std::max(3 * scores, p.Rows(queries, 2 * f));
  return unit;
}

UnitMemory PlanHead(const Plan& p) {
  const HistorySpec spec = {p.sizes.grid, p.sizes.actions, p.sizes.n_transit,
                            p.sizes.compressed};
  UnitMemory unit;
  unit.output = p.samples * spec.logits() * 4;
  unit.kept = unit.output;
  unit.logits_passing = 3 * unit.output;
  unit.backward_workspace =
      p.Rows(p.samples, p.sizes.embedding) +
      p.SmallerGradients(1 + static_cast<int>(p.sizes.layers));
  return unit;
}

}  // namespace

std::vector<UnitMemory> AdTransformer::PlanUnits(
    int64_t samples, int64_t length, c10::ScalarType compute) const {
  const bool fused = compute == c10::ScalarType::Float &&
                     sizes_.embedding % 16 == 0 &&
                     sizes_.feed_forward % 16 == 0;
  const Plan plan = {sizes_,
                     specs_,
                     samples,
                     length > 0 ? length : sizes_.n_transit,
                     static_cast<int64_t>(c10::elementSize(compute)),
                     fused};
  std::vector<UnitMemory> units = {PlanEmbedding(plan)};
  for (int64_t layer = 0; layer < sizes_.layers; ++layer) {
    units.push_back(PlanLayer(plan, layer));
  }
  units.push_back(PlanHead(plan));
  return units;
}

}  // namespace ad_transformer
}  // namespace capstan
