// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_DARKROOM_PPO_H_
#define CAPSTAN_DATASETS_DARKROOM_PPO_H_

#include <cstdint>
#include <vector>

#include "datasets/darkroom/history_file.h"
#include "datasets/darkroom/ppo_networks.h"
#include "plugins/algorithm_distillation/darkroom.h"

namespace capstan::darkroom {

// Generalised advantage estimation (Schulman et al., arXiv 1506.02438) over
// `steps` steps of `streams` streams: rewards, dones and advantages are [steps,
// streams], values [steps + 1, streams]. Nothing after a done step counts.
void EstimateAdvantages(double discount, double lambda, int64_t steps,
                        int64_t streams, const uint8_t* rewards,
                        const uint8_t* dones, const float* values,
                        float* advantages);

// Learns one task with many agents (streams) in parallel, and records what they
// do, like stable-baselines3's PPO with as many environments: returns end with
// their episode, and the next episode starts at the next step. Depends only on
// the seed. Single-threaded.
class PpoLearner {
 public:
  PpoLearner(const PpoSettings& settings, const Room& room, const Task& task,
             int64_t streams, uint64_t seed);

  // Runs settings.steps_per_update steps of each stream, appended to history(),
  // and settings.epochs passes over them.
  void Update();

  // Of all updates; compress_markers mark the steps of each update.
  const History& history() const { return history_; }

  // Over the episodes that ended in the last update, or in the latest one in
  // which any did; 0 before the first.
  double mean_return() const { return mean_return_; }

 private:
  void CollectSteps();
  void Record(const uint8_t* actions, const uint8_t* rewards,
              const std::vector<Cell>& before, bool first, bool last);
  // Computes the samples' advantages and targets.
  void Judge();
  void Learn();

  int CellOf(const Cell& cell) const {
    return cell.row * rooms_.room().size + cell.column;
  }

  const PpoSettings settings_;
  const int64_t streams_;
  const uint64_t action_key_, order_key_;
  Darkroom rooms_;
  PpoNetworks networks_;
  History history_;
  int64_t updates_ = 0, steps_ = 0;

  std::vector<float> log_probabilities_;  // [cells, kActions]
  std::vector<float> values_;             // [cells]
  // Samples of the current update, [steps, streams].
  std::vector<PpoSample> samples_;
  std::vector<uint8_t> rewards_, dones_;
  std::vector<PpoSample> minibatch_;
  std::vector<int32_t> order_;
  std::vector<int32_t> returns_;  // of the current episodes, [streams]
  double mean_return_ = 0.0;
};

}  // namespace capstan::darkroom

#endif  // CAPSTAN_DATASETS_DARKROOM_PPO_H_
