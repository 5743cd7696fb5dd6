// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_PLAY_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_PLAY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "plugins/algorithm_distillation/environment.h"

namespace capstan {

// INVALID_ARGUMENT if the environment says of itself what can't be.
absl::Status CheckEnvironment(const Environment& environment);

// Episodes with what they show and where they are.
class Play {
 public:
  // Begins episodes of these tasks. `environment` must outlive this.
  Play(const Environment& environment, const std::vector<int>& tasks)
      : spec_(environment.spec()),
        episodes_(environment.NewEpisodes(tasks)),
        observations_(tasks.size() * spec_.numbers) {
    Reset();
  }

  const EnvironmentSpec& spec() const { return spec_; }
  // [tasks, numbers].
  const std::vector<uint8_t>& observations() const { return observations_; }
  const uint8_t* observation(size_t task) const {
    return &observations_[task * spec_.numbers];
  }
  // Steps of these episodes so far.
  int step() const { return step_; }
  bool done() const { return step_ == spec_.horizon; }

  void Reset() {
    step_ = 0;
    episodes_->Reset(observations_.data());
  }
  // Takes an action of each task; `rewards` is [tasks]. Not when done().
  void Step(const uint8_t* actions, int* rewards) {
    ++step_;
    episodes_->Step(actions, observations_.data(), rewards);
  }

 private:
  const EnvironmentSpec spec_;
  const std::unique_ptr<Episodes> episodes_;
  std::vector<uint8_t> observations_;
  int step_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_PLAY_H_
