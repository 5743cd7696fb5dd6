// SPDX-License-Identifier: Apache-2.0
#include "plugins/precision/auto/auto.h"

#include "plugins/sdk/plugin.h"

namespace capstan {
namespace auto_ {
namespace {

// Compute capabilities with tensor cores for the dtype (CUDA C++ Programming
// Guide, "Compute Capabilities").
constexpr int kBfloat16 = 80;
constexpr int kFloat16 = 70;

}  // namespace

absl::StatusOr<std::unique_ptr<Auto>> Auto::Create(const Config&) {
  return std::make_unique<Auto>();
}

PrecisionPolicy Auto::PolicyOn(const DeviceFacts& device) const {
  PrecisionPolicy policy;
  if (!device.gpu) return policy;
  if (device.compute_capability >= kBfloat16) {
    policy.compute = c10::ScalarType::BFloat16;
  } else if (device.compute_capability >= kFloat16) {
    policy.compute = c10::ScalarType::Half;
    policy.loss_scaling.emplace();
  }
  return policy;
}

CAPSTAN_PLUGIN_AS("capstan.auto.Config", Precision, Auto, Config,
                  "bfloat16 or float16 where the device is fast in it, else "
                  "float32");

}  // namespace auto_
}  // namespace capstan
