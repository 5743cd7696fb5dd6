// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_LORA_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_LORA_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layers/linear.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"

namespace capstan::decoder {

// The low-rank adapters of a model's layers: which matrices have one, their
// parameters and initial values.
class DecoderLora {
 public:
  // The adapters' parameters follow the model's own, which are those of
  // `layout`; those of `modules_to_save` are trained whole (the head's, if
  // tied, as the embedding's). FieldError for a spec or a pretrained adapter
  // that doesn't fit them. Adapters are for the linear layers that transformers
  // has: experts are stacked there, and no modules of their own.
  static absl::StatusOr<std::unique_ptr<DecoderLora>> Create(
      const LoraSpec& spec, const std::vector<std::string>& modules_to_save,
      const DecoderConfig& config, const DecoderLayout& layout);

  // A and B of each adapter, and DoRA's magnitudes, in the order of first use.
  const std::vector<ParameterSpec>& specs() const { return specs_; }

  // Reads elements [begin, begin + count) of a base parameter's initial value.
  using ReadBase = std::function<absl::Status(int index, int64_t begin,
                                              int64_t count, float* out)>;
  // As Model::InitialValue, for specs()[index]. Magnitudes are at first the
  // norms of the rows of what `base` reads, in float64.
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out,
                            const ReadBase& base) const;

  // The adapter of base parameter `index`, from the model's parameters (base
  // and adapters); undefined if it has none. samples: see
  // TokenInput::sample_positions. known_norms: Adapter::known_norms by base
  // parameter; null: none.
  kernels::Adapter At(int index, const std::vector<at::Tensor>& parameters,
                      const at::Tensor& samples,
                      std::vector<at::Tensor>* known_norms) const;

  // Model::SavedNames, of base parameter `index`.
  const std::vector<std::string>& SavedNames(int index) const {
    return saved_[index];
  }
  bool Saves(int index) const { return !saved_[index].empty(); }
  bool SavesAny() const;
  // Whether base parameter `index` starts from the pretrained adapter's value,
  // and elements [begin, begin + count) of that.
  bool HasSavedValue(int index) const {
    return pretrained_ != nullptr && Saves(index);
  }
  absl::Status SavedValue(int index, int64_t begin, int64_t count,
                          float* out) const;

  bool Has(int index) const { return index >= 0 && place_[index] >= 0; }
  int64_t rank() const { return spec_.rank; }
  bool dora() const { return spec_.dora; }
  bool dropout() const { return spec_.dropout > 0.0; }

 private:
  explicit DecoderLora(const LoraSpec& spec) : spec_(spec) {}

  void AddAdapters(const DecoderLayout& layout);
  absl::Status Save(const std::vector<std::string>& modules,
                    const DecoderConfig& config, const DecoderLayout& layout);
  absl::Status OpenPretrained(const DecoderLayout& layout);

  const LoraSpec spec_;
  std::vector<ParameterSpec> specs_;
  // By base parameter: the index of its A among all parameters, or -1; and the
  // key of its dropout.
  std::vector<int> place_;
  std::vector<uint64_t> keys_;
  std::vector<std::vector<std::string>> saved_;    // by base parameter
  std::unique_ptr<SafetensorsReader> pretrained_;  // null: random
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_LORA_H_
