// SPDX-License-Identifier: Apache-2.0
//
// A whole environment from outside: one number to see, three actions, rewards
// below 0, and its own choice of held-out tasks.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "acme/corridor/corridor.pb.h"
#include "plugins/algorithm_distillation/environment.h"
#include "plugins/sdk/plugin.h"

namespace acme::corridor {
namespace {

constexpr int kHorizon = 10;
constexpr int kTreasure = 2, kTrap = -1;

class Walks final : public capstan::Episodes {
 public:
  Walks(int length, const std::vector<int>& treasures)
      : length_(length), treasures_(treasures), at_(treasures.size()) {}

  void Reset(uint8_t* observations) override {
    std::fill(at_.begin(), at_.end(), static_cast<uint8_t>(length_ / 2));
    std::copy(at_.begin(), at_.end(), observations);
  }
  // Back, stay, forth.
  void Step(const uint8_t* actions, uint8_t* observations,
            int* rewards) override {
    for (size_t i = 0; i < at_.size(); ++i) {
      at_[i] = static_cast<uint8_t>(
          std::clamp(at_[i] + actions[i] - 1, 0, length_ - 1));
      const bool is_end = at_[i] == 0 || at_[i] == length_ - 1;
      rewards[i] = at_[i] == treasures_[i] ? kTreasure : is_end ? kTrap : 0;
    }
    std::copy(at_.begin(), at_.end(), observations);
  }

 private:
  const int length_;
  const std::vector<int> treasures_;
  std::vector<uint8_t> at_;
};

class Corridor final : public capstan::Environment {
 public:
  static absl::StatusOr<std::unique_ptr<Corridor>> Create(
      const Config& config) {
    const int length = config.length() == 0 ? 11 : config.length();
    if (length < 3 || length > 255) {
      return capstan::FieldError(
          "length", absl::StrCat("must be in [3, 255], is ", length));
    }
    return std::unique_ptr<Corridor>(new Corridor(length));
  }

  capstan::EnvironmentSpec spec() const override {
    capstan::EnvironmentSpec spec;
    spec.actions = 3;
    spec.horizon = kHorizon;
    spec.numbers = 1;
    spec.bounds[0] = length_;
    spec.least_reward = kTrap;
    spec.most_reward = kTreasure;
    return spec;
  }
  int tasks() const override { return length_; }
  std::string TaskName(int task) const override {
    return absl::StrCat("treasure at ", task);
  }
  double OptimalReturn(int task) const override {
    const int steps = std::max(1, std::abs(task - length_ / 2));
    return kTreasure * std::max(0, kHorizon + 1 - steps);
  }
  std::unique_ptr<capstan::Episodes> NewEpisodes(
      const std::vector<int>& tasks) const override {
    return std::make_unique<Walks>(length_, tasks);
  }
  std::vector<int> HeldOutTasks() const override { return {1, length_ - 3}; }

 private:
  explicit Corridor(int length) : length_(length) {}

  const int length_;
};

CAPSTAN_PLUGIN(Part, Corridor, acme::corridor::Config, "a corridor with traps");

}  // namespace
}  // namespace acme::corridor
