// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/host_failures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan {

HostFailures::HostFailures(const Witness& rule)
    : most_(rule.most_failures()),
      within_(rule.within_steps() > 0 ? rule.within_steps() : 100),
      every_(std::max<int64_t>(1, rule.every_steps())) {}

bool HostFailures::Add(const std::string& host, size_t count, int64_t step) {
  std::deque<int64_t>& steps = steps_[host];
  steps.insert(steps.end(), count, step);
  while (!steps.empty() && (step - steps.front()) / every_ >= within_) {
    steps.pop_front();
  }
  return counts() && static_cast<int64_t>(steps.size()) >= most_;
}

std::string HostFailures::Text() const {
  std::string text;
  for (const auto& [host, steps] : steps_) {
    for (const int64_t step : steps) {
      absl::StrAppend(&text, step, " ", host, "\n");
    }
  }
  return text;
}

void HostFailures::Restore(absl::string_view text) {
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t step = 0;
    if (absl::SimpleAtoi(parts.first, &step)) {
      steps_[parts.second].push_back(step);
    }
  }
}

}  // namespace capstan
