// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"
#include "tests/conformance/broken/broken_precision.pb.h"

namespace acme {
namespace broken_precision {

class BrokenPrecision final : public capstan::Precision {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenPrecision>> Create(
      const Config& config) {
    return std::unique_ptr<BrokenPrecision>(new BrokenPrecision(config.bug()));
  }

  capstan::PrecisionPolicy policy() const override {
    capstan::PrecisionPolicy policy;
    policy.compute = c10::ScalarType::Half;
    policy.loss_scaling = capstan::LossScaling();
    policy.loss_scaling->initial_scale = 1024.0;
    if (bug_ == Config::NARROW_MASTERS) {
      policy.master = c10::ScalarType::BFloat16;
    }
    if (bug_ == Config::UNSCALED) policy.loss_scaling.reset();
    if (bug_ == Config::SCALE_OF_1000) {
      policy.loss_scaling->initial_scale = 1000.0;
    }
    if (bug_ == Config::BELOW_MINIMUM) policy.loss_scaling->min_scale = 2048.0;
    if (bug_ == Config::CHANGING) {
      policy.loss_scaling->growth_interval += ++calls_;
    }
    return policy;
  }

 private:
  explicit BrokenPrecision(Config::Bug bug) : bug_(bug) {}

  const Config::Bug bug_;
  mutable int calls_ = 0;
};

CAPSTAN_PLUGIN(Precision, BrokenPrecision, acme::broken_precision::Config,
               "float16 with a bug of one's choice");

}  // namespace broken_precision
}  // namespace acme
