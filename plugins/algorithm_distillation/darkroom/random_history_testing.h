// SPDX-License-Identifier: Apache-2.0
//
// For tests and benchmarks.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_RANDOM_HISTORY_TESTING_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_RANDOM_HISTORY_TESTING_H_

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/play.h"

namespace capstan::darkroom {

// What agents got who act at random, keyed by the task.
inline History RandomHistory(const Environment& environment, int task,
                             int64_t steps, int64_t streams) {
  Play play(environment, std::vector<int>(streams, task));
  const EnvironmentSpec& spec = play.spec();
  History history;
  history.steps = steps;
  history.streams = streams;
  history.numbers = spec.numbers;
  history.least_reward = spec.least_reward;
  const auto append = [&play](std::vector<uint8_t>* to) {
    to->insert(to->end(), play.observations().begin(),
               play.observations().end());
  };
  std::vector<int> rewards(streams);
  for (int64_t step = 0; step < steps; ++step) {
    append(&history.states);
    for (int64_t i = 0; i < streams; ++i) {
      history.actions.push_back(static_cast<uint8_t>(
          RandomBelow(task, step * streams + i, spec.actions)));
    }
    play.Step(&history.actions[step * streams], rewards.data());
    for (const int reward : rewards) {
      history.rewards.push_back(spec.RewardByte(reward));
    }
    history.dones.insert(history.dones.end(), streams, play.done());
    if (play.done()) play.Reset();
    append(&history.next_states);
  }
  return history;
}

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_RANDOM_HISTORY_TESTING_H_
