// SPDX-License-Identifier: Apache-2.0
//
// DecoderModel's weights as inference wants them: where its files are mapped,
// or in fewer bits.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "kernels/decode/few_rows.h"
#include "kernels/layers/mixed_linear.h"
#include "plugins/model/decoder/decoder_model.h"

namespace capstan::decoder {
namespace {

// `weight` [rows, columns] as int8 and the scales of its rows.
std::pair<at::Tensor, at::Tensor> Quantized(const at::Tensor& weight) {
  const kernels::StoredMatrix from = kernels::StoredOf(weight);
  at::Tensor values = at::empty(weight.sizes(), at::kChar);
  at::Tensor scales = at::empty({from.rows}, at::kFloat);
  auto* const out = values.mutable_data_ptr<int8_t>();
  auto* const scale = scales.mutable_data_ptr<float>();
  constexpr int64_t kGrain = 64;
  at::parallel_for(0, from.rows, kGrain, [&](int64_t row, int64_t end) {
    std::vector<float> floats(from.columns);
    for (; row < end; ++row) {
      kernels::ReadMatrix(from, row, 0, from.columns, floats.data());
      scale[row] = kernels::QuantizeInt8(floats.data(), from.columns,
                                         out + row * from.columns);
    }
  });
  return {std::move(values), std::move(scales)};
}

}  // namespace

bool DecoderModel::IsMatrix(int index) const {
  // Those of the adapters are behind.
  return static_cast<size_t>(index) < layout_.specs.size() &&
         layout_.specs[index].shape.size() == 2 &&
         std::none_of(layout_.layers.begin(), layout_.layers.end(),
                      [index](const DecoderLayout::Layer& layer) {
                        return layer.weight[kRouter] == index;
                      });
}

at::Tensor DecoderModel::StoredWeight(int index) const {
  if (weights_ == nullptr || Packed(index) ||
      static_cast<size_t>(index) >= layout_.specs.size() || HasNewRows(index) ||
      (lora_ != nullptr && lora_->HasSavedValue(index))) {
    return {};
  }
  const auto found = weights_->tensors().find(
      file_names_.empty() ? specs_[index].name : file_names_[index]);
  if (found == weights_->tensors().end()) return {};
  const TensorEntry& entry = found->second;
  if (entry.data == nullptr) return {};  // it is made of quantised ones
  const bool wide = entry.dtype == at::kFloat;
  const bool narrow = entry.dtype == at::kBFloat16 || entry.dtype == at::kHalf;
  if (!wide && !(narrow && IsMatrix(index))) return {};
  // The format doesn't align tensors.
  if (reinterpret_cast<uintptr_t>(entry.data) % c10::elementSize(entry.dtype) !=
      0) {
    return {};
  }
  return at::from_blob(const_cast<char*>(entry.data), specs_[index].shape,
                       at::TensorOptions().dtype(entry.dtype));
}

bool DecoderModel::IsMapped(int index, const at::Tensor& weight) const {
  const at::Tensor stored = StoredWeight(index);
  return stored.defined() && stored.const_data_ptr() == weight.const_data_ptr();
}

at::Tensor DecoderModel::InForm(int index, at::Tensor weight, WeightForm form) {
  if (form == WeightForm::kStored || Packed(index) || !IsMatrix(index)) {
    return weight;
  }
  at::Tensor made;
  if (form == WeightForm::kInt8) {
    std::tie(made, scales_[index]) = Quantized(weight);
  } else {
    made = weight.to(form == WeightForm::kFloat32 ? at::kFloat : at::kBFloat16);
  }
  if (!made.is_same(weight) && IsMapped(index, weight)) {
    ForgetMapped(weight.const_data_ptr(), weight.nbytes());
  }
  return made;
}

absl::Status DecoderModel::BindForInference(std::vector<at::Tensor> weights,
                                            WeightForm form) {
  scales_.assign(weights.size(), at::Tensor());
  bool mapped = false;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int index = static_cast<int>(i);
    weights[i] = InForm(index, std::move(weights[i]), form);
    mapped = mapped || (IsMatrix(index) && IsMapped(index, weights[i]));
  }
  if (mapped) weights_->ExpectRepeatedReads();
  std::vector<at::Tensor> scales = std::move(scales_);
  Bind(std::move(weights));
  scales_ = std::move(scales);
  return absl::OkStatus();
}

}  // namespace capstan::decoder
