// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/status/statusor.h"
#include "plugins/precision/auto/auto.pb.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"

namespace capstan::auto_ {
namespace {

// Compute capabilities with tensor cores for the dtype (CUDA C++ Programming
// Guide, "Compute Capabilities").
constexpr int kBfloat16 = 80;
constexpr int kFloat16 = 70;

// The narrowest dtype that is fast on the run's device.
class Auto final : public Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Auto>> Create(const Config&) {
    return std::make_unique<Auto>();
  }

  // For an unknown device: float32.
  PrecisionPolicy policy() const override { return {}; }
  bool depends_on_device() const override { return true; }
  PrecisionPolicy PolicyOn(const DeviceFacts& device) const override {
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
};

}  // namespace

CAPSTAN_PLUGIN_AS("capstan.auto.Config", Precision, Auto, Config,
                  "bfloat16 or float16 where the device is fast in it, else "
                  "float32");

}  // namespace capstan::auto_
