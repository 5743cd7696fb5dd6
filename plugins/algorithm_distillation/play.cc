// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/play.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

constexpr int kMostOfAByte = 255;

bool Within(int value, int most) { return value >= 1 && value <= most; }

}  // namespace

absl::Status CheckEnvironment(const Environment& environment) {
  const EnvironmentSpec spec = environment.spec();
  const auto bad = [](const char* what, int is, const char* wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment has ", is, " ", what, ", not ", wanted));
  };
  if (!Within(spec.actions, kMostOfAByte)) {
    return bad("actions", spec.actions, "1 to 255");
  }
  if (spec.horizon < 1) {
    return bad("steps in an episode", spec.horizon, "1 or more");
  }
  if (!Within(spec.numbers, EnvironmentSpec::kMostNumbers)) {
    return bad("numbers in an observation", spec.numbers, "1 to 8");
  }
  for (int i = 0; i < spec.numbers; ++i) {
    if (!Within(spec.bounds[i], kMostOfAByte)) {
      return bad("values of a number of its observations", spec.bounds[i],
                 "1 to 255");
    }
  }
  const int64_t rewards = int64_t{spec.most_reward} - spec.least_reward + 1;
  if (rewards < 1 || rewards > kMostOfAByte + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment has rewards from ", spec.least_reward, " to ",
        spec.most_reward, ": they may be at most 255 apart"));
  }
  const int tasks = environment.tasks();
  if (tasks < 1) return bad("tasks", tasks, "1 or more");
  const std::vector<int> held_out = environment.HeldOutTasks();
  const std::set<int> different(held_out.begin(), held_out.end());
  if (different.size() != held_out.size() ||
      (!different.empty() &&
       (*different.begin() < 0 || *different.rbegin() >= tasks))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment holds out tasks that aren't different ones of 0 to ",
        tasks - 1));
  }
  return absl::OkStatus();
}

}  // namespace capstan
