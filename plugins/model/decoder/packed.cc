// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/packed.h"

#include <ATen/Parallel.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/quant/nf4.h"
#include "plugins/sdk/lib/quantized_folder.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::decoder {
namespace {

// The indices of the matrices of linear layers.
std::vector<int> LinearLayers(const DecoderLayout& layout) {
  std::vector<int> indices;
  for (const DecoderLayout::Layer& layer : layout.layers) {
    for (const LayerModule m : kBlockModules) {
      if (layer.weight[m] >= 0) indices.push_back(layer.weight[m]);
    }
    for (const auto& expert : layer.experts) {
      indices.insert(indices.end(), expert.begin(), expert.end());
    }
  }
  return indices;
}

absl::Status CheckFormat(Quantize quantize, const PackedMatrix& matrix,
                         const std::string& name) {
  const bool twice = matrix.double_quantised();
  if (quantize == Quantize::kFolders ||
      (quantize == Quantize::kNf4Double) == twice) {
    return absl::OkStatus();
  }
  const auto text = [](bool double_quantised) {
    return double_quantised ? "NF4_DOUBLE" : "NF4";
  };
  return FieldError(
      "quantize",
      absl::StrCat("is ", text(!twice), ", but the folder's '", name, "' is ",
                   text(twice), " already: leave quantize out to keep that"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrices>> PackedMatrices::Create(
    Quantize quantize, const DecoderLayout& layout,
    const SafetensorsReader* weights,
    const std::vector<std::string>& file_names, const ReadParameter& read) {
  std::unique_ptr<PackedMatrices> packed(new PackedMatrices(layout));
  const auto* const folder = dynamic_cast<const QuantizedReader*>(weights);
  for (const int index : LinearLayers(layout)) {
    const ParameterSpec& spec = layout.specs[index];
    if (folder != nullptr) {
      const PackedMatrix* const matrix =
          folder->Packed(file_names.empty() ? spec.name : file_names[index]);
      if (matrix != nullptr) {
        CAPSTAN_RETURN_IF_ERROR(CheckFormat(quantize, *matrix, spec.name));
        packed->matrices_[index] = matrix;
        continue;
      }
    }
    if (quantize == Quantize::kFolders) continue;
    packed->made_.push_back(QuantizeMatrix(
        spec.numel(), quantize == Quantize::kNf4Double,
        [read, index](int64_t begin, int64_t count, float* out) {
          return read(index, begin, count, out);
        },
        spec.name));
    packed->matrices_[index] = packed->made_.back().get();
  }
  return packed;
}

void PackedMatrices::Unpack(int index, const uint8_t* bytes, float* out) const {
  const kernels::Nf4Matrix matrix = {
      bytes, kernels::Nf4Layout(specs_[index].numel(),
                                matrices_[index]->double_quantised())};
  constexpr int64_t kGrain = 1 << 16;
  at::parallel_for(
      0, matrix.layout.numel, kGrain, [&](int64_t begin, int64_t end) {
        kernels::DequantizeNf4(matrix, begin, end - begin, out + begin);
      });
}

kernels::Weight PackedMatrices::Bound(int index,
                                      const at::Tensor& bytes) const {
  return {bytes,
          matrices_[index]->double_quantised()
              ? kernels::WeightFormat::kNf4Double
              : kernels::WeightFormat::kNf4,
          specs_[index].shape[0], specs_[index].shape[1]};
}

void PackedMatrices::CheckBound(const std::vector<at::Tensor>& tensors,
                                const std::vector<ParameterSpec>& specs) const {
  CHECK_EQ(tensors.size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const PackedMatrix* const matrix = at(static_cast<int>(i));
    if (matrix == nullptr) {
      CHECK(tensors[i].sizes() == at::IntArrayRef(specs[i].shape))
          << specs[i].name;
    } else {
      CHECK(tensors[i].scalar_type() == c10::ScalarType::Byte &&
            tensors[i].numel() == matrix->bytes())
          << specs[i].name;
    }
  }
}

}  // namespace capstan::decoder
