// SPDX-License-Identifier: Apache-2.0
//
// Matrices of a decoder that are kept in fewer bits (kernels/quant), below its
// adapters: those of its layers' linear layers, experts included, but not of
// the embedding, the head and routers (as transformers and PEFT have it).
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_PACKED_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_PACKED_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layers/weight.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/sdk/lib/packed_matrix.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"

namespace capstan::decoder {

class PackedMatrices {
 public:
  // Reads values of the layout's parameters that aren't packed; thread-safe,
  // and outlives this.
  using ReadParameter = std::function<absl::Status(int index, int64_t begin,
                                                   int64_t count, float* out)>;

  // The matrices of `layout` in the format `quantize`: those that `weights`
  // (null: random ones) has in it as they are, others made of what `read`
  // gives. With kFolders only the former. `file_names` as in
  // DecoderCheckpoint. A FieldError for "quantize" if `weights` are in another
  // format.
  static absl::StatusOr<std::unique_ptr<PackedMatrices>> Create(
      Quantize quantize, const DecoderLayout& layout,
      const SafetensorsReader* weights,
      const std::vector<std::string>& file_names, const ReadParameter& read);

  // Null if parameter `index`, of the layout or an adapter's, isn't packed.
  const PackedMatrix* at(int index) const {
    return static_cast<size_t>(index) < matrices_.size() ? matrices_[index]
                                                         : nullptr;
  }
  // Writes what all of a packed parameter's `bytes` stand for.
  void Unpack(int index, const uint8_t* bytes, float* out) const;
  // The matrix whose bytes are bound as `bytes`.
  kernels::Weight Bound(int index, const at::Tensor& bytes) const;
  // CHECKs that `tensors`, by index, are bytes where matrices are packed, and
  // have the shapes of `specs` elsewhere.
  void CheckBound(const std::vector<at::Tensor>& tensors,
                  const std::vector<ParameterSpec>& specs) const;

 private:
  explicit PackedMatrices(const DecoderLayout& layout)
      : specs_(layout.specs), matrices_(specs_.size(), nullptr) {}

  const std::vector<ParameterSpec> specs_;
  std::vector<const PackedMatrix*> matrices_;  // by index; null: not packed
  std::vector<std::unique_ptr<PackedMatrix>> made_;
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_PACKED_H_
