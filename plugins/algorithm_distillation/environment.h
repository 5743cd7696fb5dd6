// SPDX-License-Identifier: Apache-2.0
//
// What agents learn in: a set of tasks of one kind, with small whole numbers as
// observations and rewards, discrete actions, and episodes of one length.
// Learners collect histories in it, histories are checked against it, and a
// model plays its held-out tasks in context. One from outside is a plugin of
// category Part: this header and the SDK are all it needs.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENVIRONMENT_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENVIRONMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/part.h"

namespace capstan {

// The sizes of an environment; plain data, which crosses processes.
struct EnvironmentSpec {
  static constexpr int kMostNumbers = 8;

  int actions = 0;  // 1 to 255; an action is one of 0 to actions - 1
  int horizon = 0;  // steps of every episode
  // An observation is `numbers` numbers, 1 to kMostNumbers; number i is one of
  // 0 to bounds[i] - 1, bounds are 1 to 255.
  int numbers = 0;
  int bounds[kMostNumbers] = {};
  // Rewards are whole numbers, at most 255 apart; one byte has a reward's
  // distance from the least.
  int least_reward = 0;
  int most_reward = 1;

  uint8_t RewardByte(int reward) const {
    return static_cast<uint8_t>(reward - least_reward);
  }
};

// Episodes of several tasks, side by side and in step. What follows depends on
// the task and the actions alone: histories can be played again.
class Episodes {
 public:
  virtual ~Episodes() = default;
  // Begins an episode of each; writes what they show, [tasks, numbers].
  virtual void Reset(uint8_t* observations) = 0;
  // Takes an action in each; writes what that leads to, and the rewards. At
  // most `horizon` times between resets.
  virtual void Step(const uint8_t* actions, uint8_t* observations,
                    int* rewards) = 0;
};

// Threads may share one.
class Environment : public Part {
 public:
  // Constant.
  virtual EnvironmentSpec spec() const = 0;
  // At least 1; tasks are 0 to tasks() - 1.
  virtual int tasks() const = 0;
  // For people: "goal (5, 6)".
  virtual std::string TaskName(int task) const = 0;
  // The greatest return of an episode.
  virtual double OptimalReturn(int task) const = 0;
  // The tasks may repeat.
  virtual std::unique_ptr<Episodes> NewEpisodes(
      const std::vector<int>& tasks) const = 0;
  // The tasks that aren't trained on. None: a tenth, drawn as the original does
  // (SplitTasks).
  virtual std::vector<int> HeldOutTasks() const { return {}; }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENVIRONMENT_H_
