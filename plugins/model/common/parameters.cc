// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/common/parameters.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status.h"
#include "plugins/sdk/lib/quantized_folder.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan {

std::vector<std::string> UnitNames(int64_t layers) {
  std::vector<std::string> names = {"embed"};
  for (int64_t i = 0; i < layers; ++i) {
    names.push_back(absl::StrCat("layers.", i));
  }
  names.push_back("head");
  return names;
}

void FillInitial(const ParameterSpec& spec, uint64_t seed, double deviation,
                 int64_t begin, int64_t count, float* out) {
  if (absl::EndsWith(spec.name, ".bias")) {
    std::fill(out, out + count, 0.0f);
  } else if (spec.shape.size() == 1) {
    std::fill(out, out + count, 1.0f);
  } else {
    FillNormal(RandomKey(seed, spec.name), begin, count, 0.0f,
               static_cast<float>(deviation), out);
  }
}

void FillUniform(uint64_t key, double bound, int64_t begin, int64_t count,
                 float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(
        bound *
        (2.0 * RandomUniform(key, static_cast<uint64_t>(begin + i)) - 1.0));
  }
}

void CheckBound(const std::vector<at::Tensor>& tensors,
                const std::vector<ParameterSpec>& specs) {
  CHECK_EQ(tensors.size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    CHECK(tensors[i].sizes() == at::IntArrayRef(specs[i].shape))
        << specs[i].name;
  }
}

int64_t LargestGradient(const std::vector<ParameterSpec>& specs, int unit,
                        c10::ScalarType compute) {
  int64_t largest = 0;
  for (const ParameterSpec& spec : specs) {
    if (spec.unit != unit || !spec.trainable) continue;
    largest = std::max(largest, spec.numel() * kernels::ElementBytes(compute));
  }
  return largest;
}

UnitMemory PlanUnit(const kernels::OperatorMemory& memory, int64_t output,
                    const std::vector<ParameterSpec>& specs, int unit,
                    c10::ScalarType compute) {
  UnitMemory plan;
  plan.kept = memory.kept;
  plan.output = output;
  plan.forward_workspace = memory.forward;
  plan.backward_workspace =
      memory.backward - LargestGradient(specs, unit, compute);
  return plan;
}

absl::Status CheckTensors(
    const std::vector<ParameterSpec>& specs, const SafetensorsReader& weights,
    const std::string& folder, const TensorWords& words, bool any_float,
    const std::function<bool(absl::string_view name)>& unused) {
  const auto shape_text = [](const std::vector<int64_t>& shape) {
    return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
  };
  std::set<std::string> known;
  for (const ParameterSpec& spec : specs) {
    known.insert(spec.name);
    const auto it = weights.tensors().find(spec.name);
    if (it == weights.tensors().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": ", words.what, " tensor '", spec.name, "', ",
                       words.wanted, words.hint));
    }
    const TensorEntry& entry = it->second;
    if (entry.shape != spec.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.file, ": tensor '", spec.name, "' has the shape ",
                       shape_text(entry.shape), ", ", words.shape, " ",
                       shape_text(spec.shape), words.hint));
    }
    if (entry.dtype != c10::ScalarType::Float &&
        entry.dtype != c10::ScalarType::Half &&
        entry.dtype != c10::ScalarType::BFloat16 &&
        !(any_float && c10::isFloatingType(entry.dtype))) {
      return absl::InvalidArgumentError(absl::StrCat(
          entry.file, ": tensor '", spec.name,
          "' must be F32, F16 or BF16, is ", weights.DtypeName(spec.name)));
    }
  }
  for (const auto& [name, entry] : weights.tensors()) {
    if (known.count(name) > 0 || (unused && unused(name))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        entry.file, ": tensor '", name, "' ", words.unknown, words.hint));
  }
  return absl::OkStatus();
}

absl::Status CheckAlone(const google::protobuf::Message& config,
                        std::initializer_list<const char*> fields) {
  const std::unique_ptr<google::protobuf::Message> rest(config.New());
  rest->CopyFrom(config);
  for (const char* field : fields) {
    rest->GetReflection()->ClearField(
        rest.get(), rest->GetDescriptor()->FindFieldByName(field));
  }
  if (rest->ByteSizeLong() == 0) return absl::OkStatus();
  return FieldError("pretrained",
                    "is set beside sizes, which the folder's config.json "
                    "gives: set the one or the others");
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenPretrained(
    const std::string& folder, const std::vector<ParameterSpec>& specs,
    const std::function<bool(absl::string_view name)>& unused) {
  auto weights = OpenWeights(folder);
  const absl::Status status =
      weights.ok()
          ? CheckTensors(
                specs, **weights, folder,
                {"the weights lack", "which config.json asks for",
                 "but config.json makes it",
                 "has no place in the model that config.json describes", ""},
                /*any_float=*/false, unused)
          : weights.status();
  if (!status.ok()) return FieldError("pretrained", status.message());
  return weights;
}

}  // namespace capstan
