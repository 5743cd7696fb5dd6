// SPDX-License-Identifier: Apache-2.0
//
// The model that strategies are tested on: small, and with every awkward
// feature of real models. No size is divisible by 2, 3 or 4.
#ifndef CAPSTAN_TESTS_CONFORMANCE_TOY_MODEL_H_
#define CAPSTAN_TESTS_CONFORMANCE_TOY_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/context/gradient_sink.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace conformance {

constexpr int64_t kToyVocabulary = 37;
constexpr int64_t kToyLength = 5;  // tokens per sample
// Samples per step: divisible into many micro-batches for 1 to 4 ranks.
constexpr int64_t kToyGlobalBatch = 12;

// Parameters of ToyModel.
enum ToyParameter : int {
  kToyEmbed = 0,  // tied: units 0 and 6
  kToyUp,
  kToyBias,
  kToyDown,
  kToyScale,   // frozen, in a unit with trainable ones
  kToyFrozen,  // frozen and packed, alone in its unit
  kToyRare,    // used by one micro-batch of two in three steps, if at all
  kToyUnused,  // no forward uses it
  kToyGain,    // one element
  kToyNorm,
  kToyParameters,
};

// Units of ToyModel.
enum ToyUnit : int {
  kToyEmbedUnit = 0,
  kToyMixUnit,
  kToyFrozenUnit,
  kToyRareUnit,
  kToyPlainUnit,  // no parameters
  kToyExtraUnit,
  kToyHeadUnit,
  kToyUnits,
};

struct ToyBatch {
  at::Tensor ids;      // [B, T] int64
  at::Tensor targets;  // [B, T] int64, -100: none
  at::Tensor rare;     // [B, 1, 1] float: 1 where the rare weight is used
  bool any_rare = false;
  int64_t count = 0;  // targets
};

// Samples [begin, begin + count), on CPU: a function of their indices.
ToyBatch ToySamples(int64_t begin, int64_t count);

// A fault in a forward or its backward.
enum class ToyFault {
  kNone,
  kThrowInForward,    // std::runtime_error in kToyRareUnit
  kThrowInBackward,   // in kToyRareUnit, too
  kInfiniteGradient,  // of kToyBias alone
};

class ToyModel : public Model {
 public:
  ToyModel();

  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override;
  // kToyFrozen's bytes b are (b - 128) / 256: exact in bfloat16.
  int64_t PackedBytes(int index) const override;
  absl::Status PackedValue(int index, int64_t begin, int64_t count,
                           uint8_t* out) const override;
  void Unpack(int index, const uint8_t* bytes, float* out) const override;
  // That one may also be bound whole.
  void Bind(std::vector<at::Tensor> parameters) override {
    bound_ = std::move(parameters);
  }
  // Two matrix products write weight gradients to it: mix.down's, and the
  // head's, whose weight the embedding shares.
  void BindGradients(GradientSink* sink) override { sink_ = sink; }
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }

  // The tensors from Bind.
  const std::vector<at::Tensor>& bound() const { return bound_; }

  // The sum of cross-entropies over the batch's targets, a scalar: float32, or
  // float64 if the parameters are.
  at::Tensor LossSum(const ToyBatch& batch, UnitRunner& runner,
                     ToyFault fault = ToyFault::kNone) const;

 private:
  std::vector<ParameterSpec> specs_;
  std::vector<std::string> units_;
  std::vector<at::Tensor> bound_;
  GradientSink* sink_ = nullptr;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_TOY_MODEL_H_
