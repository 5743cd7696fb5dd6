// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/status/statusor.h"
#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"

namespace myvendor::myplugin {

// Forward and backward in bfloat16, masters and optimizer state in float32.
// bfloat16 has float32's exponents, so the loss needs no scaling.
class MyPlugin final : public capstan::Precision {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const Config& config) {
    auto precision = std::make_unique<MyPlugin>();
    precision->policy_.compute = c10::ScalarType::BFloat16;
    if (config.narrow_sums()) {
      precision->policy_.reduce = c10::ScalarType::BFloat16;
    }
    return precision;
  }

  capstan::PrecisionPolicy policy() const override { return policy_; }

 private:
  capstan::PrecisionPolicy policy_;
};

CAPSTAN_PLUGIN(Precision, MyPlugin, myvendor::myplugin::Config,
               "computes in bfloat16, updates in float32");

}  // namespace myvendor::myplugin
