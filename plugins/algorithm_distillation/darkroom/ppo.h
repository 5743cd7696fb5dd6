// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_PPO_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_PPO_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom/ppo_kernels.h"
#include "plugins/algorithm_distillation/play.h"

namespace capstan::darkroom {

// Proximal policy optimisation (Schulman et al., arXiv 1707.06347). The
// defaults are those used to collect the darkroom histories.
struct PpoSettings {
  int64_t steps_per_update = 80;  // per stream
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

// A step taken, and its outcome.
struct PpoSample {
  uint16_t observation = 0;  // its number (Observations)
  uint16_t action = 0;
  float log_probability = 0;  // of the action at that time
  float advantage = 0;
  float target = 0;  // of the value
};

// All observations of an environment, in a row: the last of their numbers
// counts fastest, so a room's is row * size + column.
class Observations {
 public:
  static constexpr int64_t kMost = 1 << 16;

  explicit Observations(const EnvironmentSpec& spec) : spec_(spec) {}

  int numbers() const { return spec_.numbers; }
  int64_t count() const;
  int64_t IndexOf(const uint8_t* observation) const;
  // Writes the numbers of the one at `index`.
  void Write(int64_t index, float* numbers) const;

 private:
  const EnvironmentSpec spec_;
};

// INVALID_ARGUMENT if the learners are too small for such an environment.
absl::Status CheckLearnable(const EnvironmentSpec& spec);

// An actor and a critic: two networks with two tanh layers of 64, whose inputs
// are the numbers of an observation. The actor outputs the logits of the
// actions, the critic the value. Single-threaded.
class PpoNetworks {
 public:
  // Random initial weights: orthogonal, times sqrt(2) in the layers, 0.01 in
  // the actor's output and 1 in the critic's; biases are 0, as in
  // stable-baselines3's MlpPolicy (Saxe et al., arXiv 1312.6120).
  PpoNetworks(const EnvironmentSpec& spec, uint64_t seed);

  // For every observation: log-probabilities of the actions, [observations,
  // actions], and values, [observations].
  void Evaluate(std::vector<float>* log_probabilities,
                std::vector<float>* values);

  // An Adam step (betas 0.9 and 0.999, epsilon 1e-5) on the clipped objective
  // of `count` samples, at least 1. If there are several, advantages are first
  // normalised to mean 0 and standard deviation 1.
  void Step(const PpoSettings& settings, const PpoSample* samples, int count);

  // Returns the mean loss of a minibatch, policy + value_weight * value -
  // entropy_weight * entropy; writes its gradient to gradient().
  double Gradient(const PpoSettings& settings, const PpoSample* samples,
                  int count);

  // Two each: the actor's and the critic's.
  Network* parameters() { return parameters_; }
  const Network* gradient() const { return gradient_; }

 private:
  // A network's activations for the rows of a minibatch.
  struct Layers {
    std::vector<float> h1, h2;  // [rows, kHidden]
    std::vector<float> out;     // [rows, kOutputs]
    std::vector<float> d_out;
  };

  void MakeRoom(int64_t rows);
  // Assigns a row to each observation among the samples; returns the number of
  // rows.
  int64_t AssignRows(const PpoSample* samples, int count);
  // Sets the inputs of rows_ and computes the outputs of both networks.
  void Forward();
  // Turns the logits in actor_.out into log-probabilities.
  void NormaliseLogits();
  double SampleGradients(const PpoSettings& settings, const PpoSample* samples,
                         int count);
  double AddEntropy(const PpoSettings& settings, int count);

  const PpoKernels& kernels_;
  const Observations observations_;
  const int actions_;
  int64_t steps_ = 0;
  Network parameters_[2], gradient_[2], means_[2], squares_[2];

  // Samples of the same observation share a row: their gradients are summed at
  // the outputs, and the rest of backward runs once.
  std::vector<int32_t> row_of_;      // an observation; -1: none
  std::vector<uint16_t> rows_;       // the observation of each
  std::vector<int32_t> row_counts_;  // and its samples
  std::vector<float> inputs_;        // [rows, kInputs]
  Layers actor_, critic_;
};

// Generalised advantage estimation (Schulman et al., arXiv 1506.02438) over
// `steps` steps of `streams` streams: rewards, dones and advantages are [steps,
// streams], values [steps + 1, streams]. Nothing after a done step counts.
void EstimateAdvantages(double discount, double lambda, int64_t steps,
                        int64_t streams, const int* rewards,
                        const uint8_t* dones, const float* values,
                        float* advantages);

// Learns one task with many agents (streams) in parallel, and records what they
// do, like stable-baselines3's PPO with as many environments: returns end with
// their episode, and the next episode starts at the next step. Depends only on
// the seed. Single-threaded.
class PpoLearner {
 public:
  // `environment` must outlive this, and be learnable.
  PpoLearner(const PpoSettings& settings, const Environment& environment,
             int task, int64_t streams, uint64_t seed);

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
  void Record(const uint8_t* actions, const int* rewards,
              const std::vector<uint8_t>& before, bool first, bool last);
  void Judge();
  void Learn();

  const PpoSettings settings_;
  const int64_t streams_;
  const uint64_t action_key_, order_key_;
  Play play_;
  const Observations observations_;
  PpoNetworks networks_;
  History history_;
  int64_t updates_ = 0, steps_ = 0;

  std::vector<float> log_probabilities_;  // [observations, actions]
  std::vector<float> values_;             // [observations]
  // Samples of the current update, [steps, streams].
  std::vector<PpoSample> samples_;
  std::vector<int> rewards_;
  std::vector<uint8_t> dones_;
  std::vector<PpoSample> minibatch_;
  std::vector<int32_t> order_;
  std::vector<int32_t> returns_;  // of the current episodes, [streams]
  double mean_return_ = 0.0;
};

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_PPO_H_
