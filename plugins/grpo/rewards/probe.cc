// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/probe.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace capstan::grpo {
namespace {

// Of 16-bit arithmetic on another machine.
constexpr double kRelative = 1e-2, kAbsolute = 1e-3;

}  // namespace

std::string WhatScoresOtherwise(const Probes& before, const Probes& now) {
  std::string text;
  for (const auto& [name, then] : before) {
    const auto found = now.find(name);
    if (found == now.end() || found->second.row != then.row ||
        std::abs(found->second.score - then.score) <=
            kAbsolute + kRelative * std::abs(then.score)) {
      continue;
    }
    absl::StrAppend(
        &text, "capstan.grpo: the reward ", name, " scores an answer ",
        found->second.score, " that it scored ", then.score,
        " before the run was resumed: its model has been replaced since. The "
        "run goes on with this one; rewards from before and after don't "
        "compare\n");
  }
  return text;
}

}  // namespace capstan::grpo
