// SPDX-License-Identifier: Apache-2.0
//
// What llama_plan.cc and llama_plan_layer.cc count with.
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_PLAN_SIZES_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_PLAN_SIZES_H_

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

#include "plugins/model/llama/llama_lora.h"
#include "plugins/model/llama/llama_sizes.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace llama {
namespace plan {

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
  // `lora` null: all parameters are trained.
  Sizes(const LlamaConfig& c, const LlamaLora* lora, int64_t samples,
        int64_t length, c10::ScalarType compute)
      : config(c),
        lora(lora),
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
  // Whether rows are computed document by document. Masked diffusion cuts the
  // end off a row (TokenInput::positions): any batch of a model that sees both
  // sides may be so.
  bool cut() const { return !config.causal; }
  // Whether the model's own parameters have gradients.
  bool trained() const { return lora == nullptr; }
  // The gradient of a norm's weight.
  int64_t NormGradient() const { return trained() ? Weight(1) : 0; }

  const LlamaConfig& config;
  const LlamaLora* const lora;
  const int64_t samples;
  const int64_t length;
  const int64_t element;
  // Whether the kernels' own loops run (kernels/fast_path.h); else ATen's
  // operators, one after another.
  const bool fused;
};

// RmsNormForward and RmsNormAgain: leave the normalised rows.
inline void Normalise(const Sizes& s, Ledger* ledger) { ledger->Take(s.x()); }

// RmsNormBackward: leaves the gradient to x, and to the weight.
inline void NormaliseBackward(const Sizes& s, Ledger* ledger) {
  // The weight's in float32 before it is rounded.
  if (!s.fused) ledger->Pass(s.x() + s.Wide(s.NormGradient()));
  ledger->Take(s.x() + s.NormGradient());
}

// One of the model's layers.
UnitMemory PlanLayer(const Sizes& s, int index);

}  // namespace plan
}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_PLAN_SIZES_H_
