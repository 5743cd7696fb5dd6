// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"
#include "tests/plugins/acme/wide.pb.h"

namespace acme {
namespace wide {

class Wide final : public capstan::Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Wide>> Create(const Config&) {
    return std::make_unique<Wide>();
  }

  capstan::PrecisionPolicy policy() const override {
    capstan::PrecisionPolicy policy;
    policy.compute = policy.reduce = policy.master = c10::ScalarType::Double;
    return policy;
  }
};

CAPSTAN_PLUGIN(Precision, Wide, acme::wide::Config, "float64 throughout");

}  // namespace wide
}  // namespace acme
