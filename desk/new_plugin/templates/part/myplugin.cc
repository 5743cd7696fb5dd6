// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/algorithm_distillation/environment.h"
#include "plugins/sdk/plugin.h"

namespace myvendor::myplugin {

constexpr int kActions = 3;  // back, stay, forth

// Agents that walk a corridor from its middle; each is paid where its task's
// treasure is.
class Walks final : public capstan::Episodes {
 public:
  Walks(int length, const std::vector<int>& treasures)
      : length_(length), treasures_(treasures), at_(treasures.size()) {}

  void Reset(uint8_t* observations) override {
    std::fill(at_.begin(), at_.end(), static_cast<uint8_t>(length_ / 2));
    std::copy(at_.begin(), at_.end(), observations);
  }

  void Step(const uint8_t* actions, uint8_t* observations,
            int* rewards) override {
    for (size_t i = 0; i < at_.size(); ++i) {
      at_[i] = static_cast<uint8_t>(
          std::clamp(at_[i] + actions[i] - 1, 0, length_ - 1));
      rewards[i] = at_[i] == treasures_[i] ? 1 : 0;
    }
    std::copy(at_.begin(), at_.end(), observations);
  }

 private:
  const int length_;
  const std::vector<int> treasures_;
  std::vector<uint8_t> at_;
};

// An environment for Algorithm Distillation: a corridor with a treasure in one
// of its cells, which nobody sees.
class MyPlugin final : public capstan::Environment {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const Config& config) {
    const int length = config.length() == 0 ? 9 : config.length();
    if (length < 3 || length > 255) {
      return capstan::FieldError(
          "length", absl::StrCat("must be in [3, 255], is ", length));
    }
    const int horizon = config.horizon() == 0 ? 10 : config.horizon();
    if (horizon < 1) {
      return capstan::FieldError("horizon", "must be greater than 0");
    }
    return std::unique_ptr<MyPlugin>(new MyPlugin(length, horizon));
  }

  capstan::EnvironmentSpec spec() const override {
    capstan::EnvironmentSpec spec;
    spec.actions = kActions;
    spec.horizon = horizon_;
    spec.numbers = 1;
    spec.bounds[0] = length_;
    return spec;
  }
  int tasks() const override { return length_; }
  std::string TaskName(int task) const override {
    return absl::StrCat("treasure at ", task);
  }
  double OptimalReturn(int task) const override {
    const int steps = std::max(1, std::abs(task - length_ / 2));
    return std::max(0, horizon_ + 1 - steps);
  }
  std::unique_ptr<capstan::Episodes> NewEpisodes(
      const std::vector<int>& tasks) const override {
    return std::make_unique<Walks>(length_, tasks);
  }

 private:
  MyPlugin(int length, int horizon) : length_(length), horizon_(horizon) {}

  const int length_;
  const int horizon_;
};

CAPSTAN_PLUGIN(Part, MyPlugin, myvendor::myplugin::Config,
               "an environment: a corridor with a treasure");

}  // namespace myvendor::myplugin
