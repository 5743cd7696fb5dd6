// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_DARKROOM_PPO_NETWORKS_H_
#define CAPSTAN_DATASETS_DARKROOM_PPO_NETWORKS_H_

#include <cstdint>
#include <vector>

#include "datasets/darkroom/ppo_kernels.h"
#include "plugins/algorithm_distillation/darkroom.h"

namespace capstan {
namespace darkroom {

// Proximal policy optimisation (Schulman et al., arXiv 1707.06347). The
// defaults are those that the darkroom histories were collected with.
struct PpoSettings {
  int64_t steps_per_update = 80;  // of each stream
  int64_t minibatch_size = 40;
  int64_t epochs = 20;
  double learning_rate = 3e-4;
  double discount = 0.99;
  double gae_lambda = 0.95;
  double clip_range = 0.2;
  double value_weight = 0.5;
  double entropy_weight = 0.0;
  double max_gradient_norm = 0.5;
};

// One step that was taken, and what came of it.
struct PpoSample {
  uint16_t cell = 0;  // row * size + column
  uint16_t action = 0;
  float log_probability = 0;  // of the action when it was taken
  float advantage = 0;
  float target = 0;  // of the value
};

// Means over a minibatch.
struct PpoLosses {
  double policy = 0;
  double value = 0;
  double entropy = 0;
  // policy + value_weight * value - entropy_weight * entropy.
  double total = 0;
};

// An actor and a critic in a darkroom: two networks of two tanh layers of 64
// that see the row and the column as they are, 0 to size - 1. The actor's
// outputs are the logits of the actions, the critic's one output is the value.
// One thread.
class PpoNetworks {
 public:
  // With random weights: orthogonal, times sqrt(2) in the layers, 0.01 in the
  // actor's output and 1 in the critic's; biases are 0. (As stable-baselines3's
  // MlpPolicy has them; Saxe et al., arXiv 1312.6120.)
  PpoNetworks(int room_size, uint64_t seed);

  // Of every cell: log-probabilities of the actions, [cells, kActions], and
  // values, [cells].
  void Evaluate(std::vector<float>* log_probabilities,
                std::vector<float>* values);

  // A step of Adam (betas 0.9 and 0.999, epsilon 1e-5) on the clipped objective
  // of `count` samples, at least 1; advantages are first made to have mean 0
  // and standard deviation 1, if there are several.
  void Step(const PpoSettings& settings, const PpoSample* samples, int count);

  // The losses of a minibatch; their gradient goes to gradient().
  PpoLosses Gradient(const PpoSettings& settings, const PpoSample* samples,
                     int count);

  // The actor's and the critic's.
  Network* parameters() { return parameters_; }
  const Network* gradient() const { return gradient_; }

 private:
  // A network's inner values, of the rows of a minibatch.
  struct Layers {
    std::vector<float> h1, h2;  // [rows, kHidden]
    std::vector<float> out;     // [rows, kOutputs]
    std::vector<float> d_out;
  };

  void MakeRoom(int64_t rows);
  // Gives each cell among the samples a row; returns how many there are.
  int64_t AssignRows(const PpoSample* samples, int count);
  // Sets the inputs of rows_ and computes both networks' outputs.
  void Forward();
  // The logits in actor_.out to log-probabilities.
  void NormaliseLogits();
  PpoLosses SampleGradients(const PpoSettings& settings,
                            const PpoSample* samples, int count);
  void AddEntropy(const PpoSettings& settings, int count, PpoLosses* losses);

  const PpoKernels& kernels_;
  const int room_size_;
  int64_t steps_ = 0;
  Network parameters_[2], gradient_[2], means_[2], squares_[2];

  // Samples of the same cell share a row: their gradients add up at the
  // outputs, and the rest of the way is the same for all.
  std::vector<int32_t> row_of_cell_;  // -1: none
  std::vector<uint16_t> rows_;        // the cell of each
  std::vector<int32_t> row_counts_;   // and its samples
  std::vector<float> inputs_;         // [rows, kInputs]
  Layers actor_, critic_;
};

}  // namespace darkroom
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_DARKROOM_PPO_NETWORKS_H_
