// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/common/units.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
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

absl::Status NoCacheError() {
  return absl::UnimplementedError(
      "a model whose tokens see the whole text has no cache: each new token "
      "changes what the others' keys and values are");
}

}  // namespace capstan
