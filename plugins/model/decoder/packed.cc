// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/packed.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/quant/fp8.h"
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
  const Quantize format = matrix.format();
  if (quantize == Quantize::kFolders || quantize == format) {
    return absl::OkStatus();
  }
  const auto text = [](Quantize of) {
    return of == Quantize::kNf4Double ? "NF4_DOUBLE"
           : of == Quantize::kNf4     ? "NF4"
                                      : "FP8";
  };
  return FieldError(
      "quantize",
      absl::StrCat("is ", text(quantize), ", but the folder's '", name, "' is ",
                   text(format), " already: leave quantize out to keep that"));
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
        quantize, spec.shape[0], spec.shape[1],
        [read, index](int64_t begin, int64_t count, float* out) {
          return read(index, begin, count, out);
        },
        spec.name));
    packed->matrices_[index] = packed->made_.back().get();
  }
  return packed;
}

void PackedMatrices::Unpack(int index, const uint8_t* bytes, float* out) const {
  constexpr int64_t kGrain = 1 << 16;
  const ParameterSpec& spec = specs_[index];
  const Quantize format = matrices_[index]->format();
  if (format == Quantize::kFp8) {
    const kernels::Fp8Layout layout(spec.shape[0], spec.shape[1]);
    const auto* const scales =
        reinterpret_cast<const float*>(bytes + layout.scales);
    const int64_t columns = layout.columns;
    at::parallel_for(0, layout.rows, std::max<int64_t>(1, kGrain / columns),
                     [&](int64_t row, int64_t end) {
                       for (; row < end; ++row) {
                         kernels::DequantizeFp8(bytes + row * columns,
                                                scales[row], columns,
                                                out + row * columns);
                       }
                     });
    return;
  }
  const kernels::Nf4Matrix matrix = {
      bytes, kernels::Nf4Layout(spec.numel(), format == Quantize::kNf4Double)};
  at::parallel_for(
      0, matrix.layout.numel, kGrain, [&](int64_t begin, int64_t end) {
        kernels::DequantizeNf4(matrix, begin, end - begin, out + begin);
      });
}

kernels::Weight PackedMatrices::Bound(int index,
                                      const at::Tensor& bytes) const {
  const Quantize format = matrices_[index]->format();
  return {bytes,
          format == Quantize::kFp8         ? kernels::WeightFormat::kFp8
          : format == Quantize::kNf4Double ? kernels::WeightFormat::kNf4Double
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
