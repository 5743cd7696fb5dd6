// SPDX-License-Identifier: Apache-2.0
//
// What a micro-batch makes each unit allocate, kernel by kernel: a rehearsal
// of kernels/*.cc on the CPU, to be kept in step with them. (GPUs run the
// 16-bit kernels for all dtypes.)
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/token_loss.h"
#include "kernels/transformer_block.h"
#include "plugins/model/llama/llama.h"

namespace capstan {
namespace llama {
namespace {

constexpr int64_t kFloatBytes = 4;

// Follows the bytes that one unit's kernels hold.
class Ledger {
 public:
  explicit Ledger(int64_t live = 0) : live_(live), peak_(live) {}
  void Take(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void Free(int64_t bytes) { live_ -= bytes; }
  // Taken and freed again.
  void Pass(int64_t bytes) { peak_ = std::max(peak_, live_ + bytes); }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t live_;
  int64_t peak_;
};

// Bytes of the tensors that come and go.
struct Sizes {
  Sizes(const LlamaConfig& c, int64_t samples, int64_t length,
        c10::ScalarType compute)
      : config(c),
        samples(samples),
        length(length),
        element(static_cast<int64_t>(c10::elementSize(compute))),
        fused(compute == c10::ScalarType::Float) {}

  int64_t rows() const { return samples * length; }
  // [rows, width] in the compute dtype.
  int64_t Rows(int64_t width) const { return rows() * width * element; }
  int64_t x() const { return Rows(config.hidden_size); }
  int64_t inner() const { return Rows(config.intermediate_size); }
  int64_t q() const { return Rows(config.num_attention_heads * head()); }
  int64_t kv() const { return Rows(config.num_key_value_heads * head()); }
  int64_t head() const { return config.head_dim; }
  // The same in float32.
  int64_t Wide(int64_t bytes) const { return bytes / element * kFloatBytes; }
  int64_t rstd() const { return rows() * kFloatBytes; }
  int64_t log_sum_exp() const {
    return rows() * config.num_attention_heads * kFloatBytes;
  }
  // A weight [width, hidden], and its gradient.
  int64_t Weight(int64_t width) const {
    return width * config.hidden_size * element;
  }
  bool grouped() const {
    return config.num_attention_heads != config.num_key_value_heads;
  }

  const LlamaConfig& config;
  const int64_t samples;
  const int64_t length;
  const int64_t element;
  // Whether the kernels' own loops run (kernels/fast_path.h); else ATen's
  // operators, one after another.
  const bool fused;
};

// RmsNormForward and RmsNormAgain: leave the normalised rows.
void Normalise(const Sizes& s, Ledger* ledger) { ledger->Take(s.x()); }

// RmsNormBackward: leaves the gradient to x, and to the weight.
void NormaliseBackward(const Sizes& s, Ledger* ledger) {
  // The weight's in float32 before it is rounded.
  if (!s.fused) ledger->Pass(s.x() + s.Wide(s.Weight(1)));
  ledger->Take(s.x() + s.Weight(1));
}

// The blocks of scores of ATen's fused attention (FlashAttentionKernel.cpp):
// `scores` of them in float32 and as many rounded. For one thread: on CPUs
// ranks have few.
int64_t AttentionBlocks(const Sizes& s, int64_t scores) {
  const int64_t queries = std::min<int64_t>(
      s.length >= 768 ? 256 : (s.length >= 192 ? 64 : 32), s.length);
  const int64_t keys = std::min<int64_t>(512, s.length);
  return scores * queries * keys * (kFloatBytes + s.element);
}

// Of 16-bit types, by ATen.
void AttentionForward(const Sizes& s, Ledger* ledger) {
  // Keys and values, repeated for each head of their group.
  if (s.grouped()) ledger->Take(2 * s.q());
  ledger->Pass(s.q() + s.log_sum_exp() + AttentionBlocks(s, 1));
  ledger->Take(s.q() + s.log_sum_exp());
}

// The incoming gradient, [rows, heads * head_dim], is used up.
void AttentionBackward(const Sizes& s, Ledger* ledger) {
  ledger->Pass(3 * s.q() + AttentionBlocks(s, 2));
  ledger->Take(3 * s.q());
  ledger->Free(s.q() + 2 * (s.grouped() ? s.q() : s.kv()));
  ledger->Free(2 * s.q() + s.log_sum_exp());  // the output and its gradient
  if (!s.grouped()) return;
  // Summed over each group, then put in the order of the rows.
  for (int i = 0; i < 2; ++i) {
    ledger->Take(s.kv());
    ledger->Free(s.q());
    ledger->Pass(s.kv());
  }
}

// PlainTransformerBlock from x, which the unit before keeps. Ends with what is
// kept.
void ForwardLayer(const Sizes& s, Ledger* ledger) {
  // AttentionInput
  Normalise(s, ledger);
  ledger->Take(s.rstd() + s.q() + 2 * s.kv());
  ledger->Free(s.x());
  AttentionForward(s, ledger);
  // LinearAdd
  ledger->Take(s.x());
  // GatedMlp
  Normalise(s, ledger);
  ledger->Take(s.rstd() + 2 * s.inner());
  ledger->Take(s.inner() + s.x());
  ledger->Free(s.inner() + s.x());
  // Attention has kept its copies.
  if (s.grouped()) ledger->Free(2 * s.kv());
}

// From what is kept, with the output's gradient in the output's place.
// Gradients of parameters live until the next operator of the backward.
void BackwardLayer(const Sizes& s, Ledger* ledger) {
  const LlamaConfig& c = s.config;
  const int64_t q_weight = s.Weight(c.num_attention_heads * c.head_dim);
  const int64_t kv_weight = s.Weight(c.num_key_value_heads * c.head_dim);
  const int64_t mlp_weight = s.Weight(c.intermediate_size);
  // GatedMlp: the gradients of the activation, gate and up.
  ledger->Take(3 * s.inner() + mlp_weight);
  ledger->Free(s.inner());
  Normalise(s, ledger);
  ledger->Take(2 * mlp_weight + s.x());
  NormaliseBackward(s, ledger);
  ledger->Free(2 * s.inner() + 3 * s.x());         // gradients
  ledger->Free(s.x() + 2 * s.inner() + s.rstd());  // what was kept
  ledger->Free(3 * mlp_weight + s.Weight(1));
  // LinearAdd; the gradient of its output is that of x, too.
  ledger->Take(s.q());
  ledger->Pass(q_weight);
  AttentionBackward(s, ledger);
  // AttentionInput
  Normalise(s, ledger);
  ledger->Take(s.x() + q_weight + 2 * kv_weight);
  NormaliseBackward(s, ledger);
}

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
  int64_t positions = 64;  // of Llama::RopeAt's table
  while (positions < s.length) positions *= 2;
  unit.kept = unit.output + positions * s.head() * kFloatBytes;
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

// FusedTransformerBlock, whose matrices' gradients go to the strategy's places.
void PlanFusedLayer(const Sizes& s, UnitMemory* unit, int64_t* backward_peak) {
  const LlamaConfig& c = s.config;
  kernels::AttentionShape shape;
  shape.batch = s.samples;
  shape.heads = c.num_attention_heads;
  shape.kv_heads = c.num_key_value_heads;
  shape.head_dim = c.head_dim;
  const kernels::TransformerBlockSizes sizes =
      kernels::FusedTransformerBlockSizes(s.rows(), c.hidden_size,
                                          c.intermediate_size, shape);
  unit->kept = sizes.kept * kFloatBytes + s.x();
  unit->forward_workspace = sizes.forward * kFloatBytes;
  *backward_peak = sizes.backward * kFloatBytes + s.x() + 2 * s.Weight(1);
}

UnitMemory PlanLayer(const Sizes& s) {
  UnitMemory unit;
  int64_t backward_peak = 0;
  if (s.fused) {
    PlanFusedLayer(s, &unit, &backward_peak);
  } else {
    Ledger forward;
    ForwardLayer(s, &forward);
    unit.kept = forward.live();
    unit.forward_workspace = forward.peak() - forward.live();
    Ledger backward(unit.kept);
    BackwardLayer(s, &backward);
    backward_peak = backward.peak() - unit.kept;
  }
  unit.output = s.x();
  const LlamaConfig& c = s.config;
  const int64_t largest = s.Weight(
      std::max(c.intermediate_size, c.num_attention_heads * c.head_dim));
  unit.backward_workspace = backward_peak - largest;
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
    ledger->Pass(piece + weight);
    if (!s.fused) {
      // Products of widened logits: with the weight, then (beside the sum of
      // those before) with the normalised rows.
      const int64_t widened =
          s.Wide(piece) + pieces.rows * c.hidden_size * kFloatBytes;
      const int64_t sums = pieces.count > 2 ? weight : 0;
      ledger->Pass(piece + widened + weight + sums);
    }
    ledger->Take(weight);  // so_far
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
  if (!c.tie_word_embeddings) {
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
  if (c.tie_word_embeddings) {
    unit.logits_kept = forward.live() - s.rstd() - s.Wide(s.x());
  }
  unit.logits_passing = forward.live() - s.rstd() - unit.logits_kept;
  unit.forward_workspace = forward.peak() - forward.live();
  Ledger backward(forward.live());
  BackwardHead(s, pieces, &backward);
  const int64_t largest = s.Weight(c.tie_word_embeddings ? 1 : c.vocab_size);
  unit.backward_workspace = backward.peak() - forward.live() - largest;
  return unit;
}

}  // namespace

std::vector<UnitMemory> Llama::PlanUnits(int64_t samples, int64_t length,
                                         c10::ScalarType compute) const {
  const Sizes sizes(config_, samples, length, compute);
  std::vector<UnitMemory> units = {PlanEmbedding(sizes)};
  units.resize(1 + config_.num_hidden_layers, PlanLayer(sizes));
  units.push_back(PlanHead(sizes));
  return units;
}

}  // namespace llama
}  // namespace capstan
