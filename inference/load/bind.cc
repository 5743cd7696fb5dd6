// SPDX-License-Identifier: Apache-2.0
#include "inference/load/bind.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace capstan {
namespace {

// The bytes of a packed parameter.
absl::StatusOr<at::Tensor> PackedWeight(const Model& model, int index) {
  const int64_t bytes = model.PackedBytes(index);
  at::Tensor weight = at::empty({bytes}, at::kByte);
  auto* const out = weight.mutable_data_ptr<uint8_t>();
  absl::Status status;
  std::mutex mutex;
  constexpr int64_t kPiece = 1 << 16;
  at::parallel_for(0, bytes, kPiece, [&](int64_t begin, int64_t end) {
    absl::Status piece =
        model.PackedValue(index, begin, end - begin, out + begin);
    const std::lock_guard<std::mutex> lock(mutex);
    status.Update(std::move(piece));
  });
  if (!status.ok()) return status;
  return weight;
}

// A parameter's value in a folder: in its mapped file where that can be, else
// float32.
absl::StatusOr<at::Tensor> FolderWeight(Model& model, int index) {
  if (model.PackedBytes(index) > 0) return PackedWeight(model, index);
  if (const auto* const inference = model.inference_weights()) {
    at::Tensor stored = inference->StoredWeight(index);
    if (stored.defined()) return stored;
  }
  const ParameterSpec& spec = model.parameters()[index];
  at::Tensor weight = at::empty(spec.shape, at::kFloat);
  CAPSTAN_RETURN_IF_ERROR(model.InitialValue(index, /*seed=*/0, 0, spec.numel(),
                                             weight.mutable_data_ptr<float>()));
  return weight;
}

// The values of a folder, or of a checkpoint, whose own are float32; each of
// them as `options` say (the dtype isn't that of packed ones) before the next
// is read.
absl::StatusOr<std::vector<at::Tensor>> ReadWeights(
    const std::string& folder, const RunFolders& runs, Model& model,
    const at::TensorOptions& options) {
  const std::vector<ParameterSpec>& specs = model.parameters();
  const auto initial = [&](int index, uint64_t seed, float* out) {
    if (model.PackedBytes(index) > 0) return absl::OkStatus();  // below
    return model.InitialValue(index, seed, 0, specs[index].numel(), out);
  };
  std::vector<at::Tensor> weights(specs.size());
  if (runs.IsCheckpoint(folder)) {
    CAPSTAN_ASSIGN_OR_RETURN(weights,
                             runs.CheckpointWeights(folder, specs, initial));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const int index = static_cast<int>(i);
    const bool packed = model.PackedBytes(index) > 0;
    if (packed || !weights[i].defined()) {
      CAPSTAN_ASSIGN_OR_RETURN(weights[i], FolderWeight(model, index));
    }
    weights[i] = weights[i].to(packed ? options.dtype(at::kByte) : options);
  }
  return weights;
}

const char* NameOf(c10::ScalarType type) {
  return type == at::kFloat      ? "float32"
         : type == at::kBFloat16 ? "bfloat16"
                                 : "float16";
}

// The dtype of all weights on a GPU. That of a folder is the one that most of
// its matrices' values have, whatever is added to them.
absl::StatusOr<c10::ScalarType> GpuType(WeightForm form, Model& model) {
  switch (form) {
    case WeightForm::kFloat32:
      return at::kFloat;
    case WeightForm::kBfloat16:
      return at::kBFloat16;
    case WeightForm::kInt8:
      return FieldError("--weights",
                        "int8 is computed with on CPUs alone: take bfloat16, "
                        "or set CUDA_VISIBLE_DEVICES= for the CPU");
    case WeightForm::kStored:
      break;
  }
  const auto* const inference = model.inference_weights();
  std::map<c10::ScalarType, int64_t> values = {{at::kFloat, 0}};
  for (size_t i = 0; inference != nullptr && i < model.parameters().size();
       ++i) {
    const at::Tensor stored = inference->StoredWeight(static_cast<int>(i));
    if (stored.defined() && stored.dim() > 1) {
      values[stored.scalar_type()] += stored.numel();
    }
  }
  return std::max_element(
             values.begin(), values.end(),
             [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace

absl::Status BindOnCpu(const std::string& folder, const RunFolders& runs,
                       WeightForm form, Model& model) {
  auto* const inference = model.inference_weights();
  if (inference == nullptr && form != WeightForm::kStored &&
      form != WeightForm::kFloat32) {
    return FieldError("--weights",
                      "this model computes with float32 weights alone");
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<at::Tensor> weights,
                           ReadWeights(folder, runs, model, {}));
  if (inference != nullptr) {
    return inference->BindForInference(std::move(weights), form);
  }
  model.Bind(std::move(weights));
  return absl::OkStatus();
}

absl::StatusOr<std::string> BindOnGpu(const std::string& folder,
                                      const RunFolders& runs, WeightForm form,
                                      at::Device device, Model& model) {
  CAPSTAN_ASSIGN_OR_RETURN(const c10::ScalarType type, GpuType(form, model));
  const std::vector<ParameterSpec>& specs = model.parameters();
  int64_t bytes = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t packed = model.PackedBytes(static_cast<int>(i));
    bytes += packed > 0 ? packed
                        : specs[i].numel() *
                              static_cast<int64_t>(c10::elementSize(type));
  }
  const auto room = static_cast<int64_t>(c10::getDeviceAllocator(device.type())
                                             ->getMemoryInfo(device.index())
                                             .first);
  if (bytes > room) {
    constexpr double kMiB = 1 << 20;
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the model's weights take %.0f MiB as %s, a GPU has %.0f MiB free: "
        "%sset CUDA_VISIBLE_DEVICES= for the CPU",
        bytes / kMiB, NameOf(type), room / kMiB,
        type == at::kFloat ? "halve them by --weights=bfloat16, or " : ""));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      std::vector<at::Tensor> weights,
      ReadWeights(folder, runs, model, at::TensorOptions(type).device(device)));
  model.Bind(std::move(weights));
  return std::string(NameOf(type));
}

}  // namespace capstan
