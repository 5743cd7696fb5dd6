// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"
#include "tests/plugins/minor0/old_bf16.pb.h"

static_assert(capstan::kPluginApiMinor == 0, "not the frozen SDK");

namespace acme {
namespace old_bf16 {

class OldBf16 final : public capstan::Precision {
 public:
  static absl::StatusOr<std::unique_ptr<OldBf16>> Create(const Config&) {
    return std::make_unique<OldBf16>();
  }

  capstan::PrecisionPolicy policy() const override {
    capstan::PrecisionPolicy policy;
    policy.compute = c10::ScalarType::BFloat16;
    return policy;
  }
};

CAPSTAN_PLUGIN(Precision, OldBf16, acme::old_bf16::Config,
               "bfloat16 of plugin API 1.0");

}  // namespace old_bf16
}  // namespace acme
