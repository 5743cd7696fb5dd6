// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "plugins/grpo/rewards/reward.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/plugin.h"
#include "tests/plugins/acme/terse.pb.h"

namespace acme {
namespace terse {

using capstan::Part;
using capstan::grpo::Answer;

class Terse final : public capstan::grpo::RewardFunction {
 public:
  static absl::StatusOr<std::unique_ptr<Terse>> Create(const Config& config) {
    CAPSTAN_RETURN_IF_ERROR(capstan::CheckField(
        config.penalty() >= 0, "penalty", "at least 0", config.penalty()));
    return std::make_unique<Terse>(config.penalty());
  }
  explicit Terse(double penalty) : penalty_(penalty) {}

  absl::Status CheckRow(absl::string_view row) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) override {
    std::vector<double> values;
    for (const Answer& answer : answers) {
      values.push_back(1.0 - penalty_ * static_cast<double>(answer.tokens));
    }
    return values;
  }

 private:
  const double penalty_;
};

CAPSTAN_PLUGIN(Part, Terse, acme::terse::Config, "a reward of short answers");

}  // namespace terse
}  // namespace acme
