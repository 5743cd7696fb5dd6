// SPDX-License-Identifier: Apache-2.0
//
// What programs and servers say that score answers, and mathematical answers of
// models. The first byte says which.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "plugins/grpo/rewards/math_answer.h"
#include "plugins/grpo/rewards/reply.h"

namespace {

void CheckReward(double value) {
  CHECK(std::isnan(value) ||
        std::abs(value) <= std::numeric_limits<float>::max());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data + 1),
                               size - 1);
  if (data[0] % 3 == 0) {
    const auto reward = capstan::grpo::RewardOfLine(text);
    if (reward.ok()) {
      CheckReward(*reward);
    } else {
      CHECK(!reward.status().message().empty());
    }
  } else if (data[0] % 3 == 1) {
    const auto rewards = capstan::grpo::RewardsOfBody(text, 2);
    if (!rewards.ok()) return 0;
    CHECK_EQ(rewards->size(), 2u);
    for (const double value : *rewards) CheckReward(value);
  } else {
    const std::string answer = capstan::grpo::FinalAnswer(text);
    const auto value = capstan::grpo::MathValueOf(answer);
    if (!value.has_value()) return 0;
    CHECK(std::isfinite(value->value));
    CHECK(capstan::grpo::SameAnswer(answer, answer, 1e-6)) << answer;
  }
  return 0;
}
