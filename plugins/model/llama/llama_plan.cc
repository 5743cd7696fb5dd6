// SPDX-License-Identifier: Apache-2.0
//
// What a micro-batch makes each unit allocate, kernel by kernel: a rehearsal
// of kernels/*.cc on the CPU, to be kept in step with them. (GPUs run the
// 16-bit kernels for all dtypes.)
#include <algorithm>

#include "kernels/loss/token_loss.h"
#include "plugins/model/llama/llama_model.h"
#include "plugins/model/llama/llama_plan_sizes.h"

namespace capstan {
namespace llama {
namespace plan {
namespace {

// The rows of logits that are made at once, and those of the last time
// (HeadCrossEntropySum).
struct Pieces {
  explicit Pieces(const Sizes& s) {
    const int64_t row_bytes = s.config.vocab_size * s.element;
    const int64_t most =
        std::max<int64_t>(1, kernels::kLogitsBytes / row_bytes);
    count = (s.rows() + most - 1) / most;
    rows = (s.rows() + count - 1) / count;
    last = s.rows() - (count - 1) * rows;
  }
  int64_t count = 1;
  int64_t rows = 0;
  int64_t last = 0;
};

// Leaves the gradient of the head's weight, float32 for 16-bit types; float32
// itself is written to the strategy's place. Has used up its parts: d_logits
// and so_far, if there are several pieces.
void TakeGradient(const Sizes& s, const Pieces& pieces, Ledger* ledger) {
  const int64_t vocab = s.config.vocab_size;
  const int64_t weight = s.Weight(vocab);
  const int64_t so_far = pieces.count > 1 ? s.Wide(weight) : 0;
  if (s.fused) {
    ledger->Free(so_far);
  } else {
    // WideProduct of d_logits and the normalised rows.
    ledger->Pass((pieces.last * (vocab + s.config.hidden_size)) * kFloatBytes +
                 s.Wide(weight));
    ledger->Take(s.Wide(weight) - so_far);
  }
  ledger->Free(pieces.last * vocab * s.element);
}

UnitMemory PlanEmbedding(const Sizes& s) {
  UnitMemory unit;
  unit.output = s.x();
  int64_t positions = 64;  // of LlamaModel::RopeAt's table
  while (positions < s.length) positions *= 2;
  unit.kept = unit.output + positions * s.head() * kFloatBytes;
  if (s.cut()) unit.kept += s.rows() * s.head() * kFloatBytes;  // by position
  if (!s.trained()) return unit;  // no backward comes here
  const LlamaConfig& c = s.config;
  const int64_t weight = s.Weight(c.vocab_size);
  const Pieces pieces(s);
  Ledger ledger;
  if (!s.fused) ledger.Take(s.Wide(s.x()));
  if (c.tie_word_embeddings) {
    TakeGradient(s, pieces, &ledger);
  } else if (!s.fused) {
    ledger.Take(s.Wide(weight));
  }
  if (!s.fused) ledger.Take(weight);
  // The strategy counts the weight's gradient, the largest one, which may not
  // be there beside its place; then this is negative.
  unit.backward_workspace = ledger.peak() - weight;
  return unit;
}

// Logits, their gradient and what is made of it on the way (HeadFunction).
void ForwardHead(const Sizes& s, const Pieces& pieces, Ledger* ledger) {
  const LlamaConfig& c = s.config;
  const int64_t weight = s.Wide(s.Weight(c.vocab_size));
  const auto logits = [&](int64_t rows) {
    return rows * c.vocab_size * s.element;
  };
  Normalise(s, ledger);
  ledger->Take(s.rstd() + s.Wide(s.x()));
  if (pieces.count > 1) {
    const int64_t piece = logits(pieces.rows);
    ledger->Pass(piece + (s.trained() ? weight : 0));
    if (!s.fused) {
      // Products of widened logits: with the weight, then (beside the sum of
      // those before) with the normalised rows.
      const int64_t widened =
          s.Wide(piece) + pieces.rows * c.hidden_size * kFloatBytes;
      const int64_t sums = pieces.count > 2 && s.trained() ? weight : 0;
      ledger->Pass(piece + widened + weight + sums);
    }
    if (s.trained()) ledger->Take(weight);  // so_far
  }
  ledger->Take(logits(pieces.last));
}

// Ends with what is left for the embedding's backward, if tied.
void BackwardHead(const Sizes& s, const Pieces& pieces, Ledger* ledger) {
  const LlamaConfig& c = s.config;
  const int64_t weight = s.Weight(c.vocab_size);
  if (!s.fused) {
    ledger->Pass(pieces.last * (c.vocab_size + c.hidden_size) * kFloatBytes +
                 s.Wide(weight));
    ledger->Take(s.x());
  }
  if (!s.trained()) {
    ledger->Free(pieces.last * c.vocab_size * s.element);
  } else if (!c.tie_word_embeddings) {
    TakeGradient(s, pieces, ledger);
    if (!s.fused) {
      ledger->Take(weight);
      ledger->Free(s.Wide(weight));
    }
    ledger->Free(s.x() + (s.fused ? 0 : weight));  // the normalised rows
  }
  if (!s.fused) ledger->Free(s.Wide(s.x()));
  NormaliseBackward(s, ledger);
}

UnitMemory PlanHead(const Sizes& s) {
  const LlamaConfig& c = s.config;
  const Pieces pieces(s);
  UnitMemory unit;
  Ledger forward;
  ForwardHead(s, pieces, &forward);
  unit.output = kFloatBytes;
  unit.kept = unit.output + s.rstd();
  // All but the gradient of the hidden rows waits for a tied embedding.
  if (c.tie_word_embeddings && s.trained()) {
    unit.logits_kept = forward.live() - s.rstd() - s.Wide(s.x());
  }
  unit.logits_passing = forward.live() - s.rstd() - unit.logits_kept;
  unit.forward_workspace = forward.peak() - forward.live();
  Ledger backward(forward.live());
  BackwardHead(s, pieces, &backward);
  const int64_t largest =
      s.trained() ? s.Weight(c.tie_word_embeddings ? 1 : c.vocab_size) : 0;
  unit.backward_workspace = backward.peak() - forward.live() - largest;
  return unit;
}

}  // namespace
}  // namespace plan

std::vector<UnitMemory> LlamaModel::PlanUnits(int64_t samples, int64_t length,
                                              c10::ScalarType compute) const {
  const plan::Sizes sizes(config_, lora_.get(), samples, length, compute);
  std::vector<UnitMemory> units = {plan::PlanEmbedding(sizes)};
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    units.push_back(plan::PlanLayer(sizes, layer));
  }
  units.push_back(plan::PlanHead(sizes));
  return units;
}

}  // namespace llama
}  // namespace capstan
