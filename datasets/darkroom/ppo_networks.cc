// SPDX-License-Identifier: Apache-2.0
#include "datasets/darkroom/ppo_networks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/random.h"

namespace capstan::darkroom {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-5;
// Rows per chunk of Evaluate: they fit the cache.
constexpr int64_t kEvaluateRows = 40;

// `count` orthonormal row vectors of `size` >= count: from the QR decomposition
// of a normal matrix, with a positive diagonal (Gram-Schmidt, twice for
// accuracy).
std::vector<double> Orthonormal(uint64_t key, int count, int size) {
  std::vector<float> normal(static_cast<size_t>(count) * size);
  FillNormal(key, 0, static_cast<int64_t>(normal.size()), 0.0f, 1.0f,
             normal.data());
  std::vector<double> rows(normal.begin(), normal.end());
  for (int i = 0; i < count; ++i) {
    double* const v = &rows[static_cast<size_t>(i) * size];
    for (int j = 0; j < 2 * i; ++j) {
      const double* const u = &rows[static_cast<size_t>(j % i) * size];
      double dot = 0.0;
      for (int k = 0; k < size; ++k) dot += u[k] * v[k];
      for (int k = 0; k < size; ++k) v[k] -= dot * u[k];
    }
    double norm = 0.0;
    for (int k = 0; k < size; ++k) norm += v[k] * v[k];
    for (int k = 0; k < size; ++k) v[k] /= std::sqrt(norm);
  }
  return rows;
}

void Initialise(uint64_t seed, const char* name, int outputs, double gain,
                Network* net) {
  const uint64_t key = RandomKey(seed, name);
  const double root2 = std::sqrt(2.0);
  const auto fill = [key](int layer, int count, double scale, float* to) {
    const auto rows = Orthonormal(RandomKey(key, layer == 0   ? "first"
                                                 : layer == 1 ? "second"
                                                              : "output"),
                                  count, kHidden);
    for (size_t i = 0; i < rows.size(); ++i) {
      to[i] = static_cast<float>(scale * rows[i]);
    }
  };
  fill(0, kInputs, root2, net->w1[0]);
  fill(1, kHidden, root2, net->w2[0]);
  fill(2, outputs, gain, net->wo[0]);
}

int64_t WholeBlocks(int64_t rows) {
  return (rows + kRowBlock - 1) / kRowBlock * kRowBlock;
}

// What to subtract from advantages, and then to divide them by.
std::pair<double, double> AdvantageScale(const PpoSample* samples, int count) {
  if (count == 1) return {0.0, 1.0};
  double mean = 0.0, squares = 0.0;
  for (int i = 0; i < count; ++i) mean += samples[i].advantage;
  mean /= count;
  for (int i = 0; i < count; ++i) {
    squares += (samples[i].advantage - mean) * (samples[i].advantage - mean);
  }
  return {mean, std::sqrt(squares / (count - 1)) + 1e-8};
}

double SumOfSquares(const PpoKernels& kernels, const Network* nets) {
  return static_cast<double>(
             kernels.sum_of_squares(nets[0].w1[0], kNetworkSize)) +
         kernels.sum_of_squares(nets[1].w1[0], kNetworkSize);
}

static_assert(kNetworkSize % 64 == 0, "kernels work on whole vectors");

}  // namespace

PpoNetworks::PpoNetworks(int room_size, uint64_t seed)
    : kernels_(BestPpoKernels()),
      room_size_(room_size),
      parameters_(),
      gradient_(),
      means_(),
      squares_(),
      row_of_cell_(room_size * room_size, -1) {
  Initialise(seed, "darkroom.actor", kActions, 0.01, &parameters_[0]);
  Initialise(seed, "darkroom.critic", 1, 1.0, &parameters_[1]);
}

void PpoNetworks::MakeRoom(int64_t rows) {
  rows = WholeBlocks(rows);
  if (static_cast<int64_t>(inputs_.size()) >= rows * kInputs) return;
  inputs_.resize(rows * kInputs);
  for (Layers* layers : {&actor_, &critic_}) {
    layers->h1.resize(rows * kHidden);
    layers->h2.resize(rows * kHidden);
    layers->out.resize(rows * kOutputs);
    layers->d_out.resize(rows * kOutputs);
  }
}

void PpoNetworks::Forward() {
  const int64_t count = static_cast<int64_t>(rows_.size());
  MakeRoom(count);
  const int64_t rows = WholeBlocks(count);
  for (int64_t r = 0; r < rows; ++r) {
    const int cell = r < count ? rows_[r] : 0;
    inputs_[r * kInputs] = static_cast<float>(cell / room_size_);
    inputs_[r * kInputs + 1] = static_cast<float>(cell % room_size_);
  }
  kernels_.forward(parameters_[0], inputs_.data(), rows, kActions,
                   actor_.h1.data(), actor_.h2.data(), actor_.out.data());
  kernels_.forward(parameters_[1], inputs_.data(), rows, 1, critic_.h1.data(),
                   critic_.h2.data(), critic_.out.data());
  NormaliseLogits();
}

void PpoNetworks::NormaliseLogits() {
  for (size_t r = 0; r < rows_.size(); ++r) {
    float* const logits = &actor_.out[r * kOutputs];
    const float most = *std::max_element(logits, logits + kActions);
    float sum = 0.0f;
    for (int a = 0; a < kActions; ++a) sum += std::exp(logits[a] - most);
    const float log_sum = most + std::log(sum);
    for (int a = 0; a < kActions; ++a) logits[a] -= log_sum;
  }
}

void PpoNetworks::Evaluate(std::vector<float>* log_probabilities,
                           std::vector<float>* values) {
  const int64_t cells = static_cast<int64_t>(room_size_) * room_size_;
  log_probabilities->resize(cells * kActions);
  values->resize(cells);
  for (int64_t begin = 0; begin < cells; begin += kEvaluateRows) {
    const int64_t end = std::min(cells, begin + kEvaluateRows);
    rows_.clear();
    for (int64_t i = begin; i < end; ++i) {
      rows_.push_back(static_cast<uint16_t>(i));
    }
    Forward();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i - begin;
      std::copy_n(&actor_.out[r * kOutputs], kActions,
                  &(*log_probabilities)[i * kActions]);
      (*values)[i] = critic_.out[r * kOutputs];
    }
  }
}

int64_t PpoNetworks::AssignRows(const PpoSample* samples, int count) {
  rows_.clear();
  row_counts_.clear();
  for (int i = 0; i < count; ++i) {
    int32_t& row = row_of_cell_[samples[i].cell];
    if (row < 0) {
      row = static_cast<int32_t>(rows_.size());
      rows_.push_back(samples[i].cell);
      row_counts_.push_back(0);
    }
    ++row_counts_[row];
  }
  return static_cast<int64_t>(rows_.size());
}

// The entropy's mean, and its gradient by the logits:
// -p (log p + entropy) each.
void PpoNetworks::AddEntropy(const PpoSettings& settings, int count,
                             PpoLosses* losses) {
  const float weight = static_cast<float>(settings.entropy_weight / count);
  for (size_t r = 0; r < rows_.size(); ++r) {
    const float* const log_p = &actor_.out[r * kOutputs];
    float entropy = 0.0f;
    for (int a = 0; a < kActions; ++a) entropy -= std::exp(log_p[a]) * log_p[a];
    for (int a = 0; a < kActions; ++a) {
      actor_.d_out[r * kOutputs + a] +=
          weight * row_counts_[r] * std::exp(log_p[a]) * (log_p[a] + entropy);
    }
    losses->entropy += static_cast<double>(entropy) * row_counts_[r] / count;
  }
}

// The losses of each sample, and their gradients by its row's outputs; of the
// logits, those by the log-probability of the action.
PpoLosses PpoNetworks::SampleGradients(const PpoSettings& settings,
                                       const PpoSample* samples, int count) {
  const auto [mean, deviation] = AdvantageScale(samples, count);
  const float low = static_cast<float>(1.0 - settings.clip_range);
  const float high = static_cast<float>(1.0 + settings.clip_range);
  const float scale = 1.0f / static_cast<float>(count);
  const float value_scale =
      static_cast<float>(2.0 * settings.value_weight / count);
  PpoLosses losses;
  for (int i = 0; i < count; ++i) {
    const PpoSample& sample = samples[i];
    const int64_t at = int64_t{row_of_cell_[sample.cell]} * kOutputs;
    const float ratio =
        std::exp(actor_.out[at + sample.action] - sample.log_probability);
    const float advantage =
        static_cast<float>((sample.advantage - mean) / deviation);
    const float clipped = std::clamp(ratio, low, high);
    losses.policy -=
        std::min(ratio * advantage, clipped * advantage) * double{scale};
    // If the clipped term is the smaller one, nothing depends on the ratio.
    if (advantage > 0.0f ? ratio <= high : ratio >= low) {
      actor_.d_out[at + sample.action] -= scale * advantage * ratio;
    }
    const float error = critic_.out[at] - sample.target;
    losses.value += double{error} * error * scale;
    critic_.d_out[at] += value_scale * error;
  }
  return losses;
}

PpoLosses PpoNetworks::Gradient(const PpoSettings& settings,
                                const PpoSample* samples, int count) {
  const int64_t used = AssignRows(samples, count);
  Forward();
  std::fill(actor_.d_out.begin(), actor_.d_out.end(), 0.0f);
  std::fill(critic_.d_out.begin(), critic_.d_out.end(), 0.0f);
  PpoLosses losses = SampleGradients(settings, samples, count);
  // From log-probabilities to logits: subtract each one's share of the sum.
  for (int64_t r = 0; r < used; ++r) {
    float* const d = &actor_.d_out[r * kOutputs];
    float sum = 0.0f;
    for (int a = 0; a < kActions; ++a) sum += d[a];
    for (int a = 0; a < kActions; ++a) {
      d[a] -= sum * std::exp(actor_.out[r * kOutputs + a]);
    }
    row_of_cell_[rows_[r]] = -1;
  }
  if (settings.entropy_weight != 0.0) AddEntropy(settings, count, &losses);
  losses.total = losses.policy + settings.value_weight * losses.value -
                 settings.entropy_weight * losses.entropy;

  const int64_t rows = WholeBlocks(used);
  kernels_.backward(parameters_[0], inputs_.data(), actor_.d_out.data(), rows,
                    kActions, actor_.h1.data(), actor_.h2.data(),
                    &gradient_[0]);
  kernels_.backward(parameters_[1], inputs_.data(), critic_.d_out.data(), rows,
                    1, critic_.h1.data(), critic_.h2.data(), &gradient_[1]);
  return losses;
}

void PpoNetworks::Step(const PpoSettings& settings, const PpoSample* samples,
                       int count) {
  Gradient(settings, samples, count);
  // As in torch.nn.utils.clip_grad_norm_.
  const double norm = std::sqrt(SumOfSquares(kernels_, gradient_));
  const double kept = settings.max_gradient_norm / (norm + 1e-6);
  ++steps_;
  AdamStep step;
  step.gradient_scale = static_cast<float>(std::min(1.0, kept));
  step.beta1 = static_cast<float>(kBeta1);
  step.beta2 = static_cast<float>(kBeta2);
  step.weight1 = static_cast<float>(1.0 - kBeta1);
  step.weight2 = static_cast<float>(1.0 - kBeta2);
  step.rate = static_cast<float>(settings.learning_rate /
                                 (1.0 - std::pow(kBeta1, steps_)));
  step.root2 =
      static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(kBeta2, steps_)));
  step.epsilon = static_cast<float>(kEpsilon);
  for (int i = 0; i < 2; ++i) {
    kernels_.adam(step, gradient_[i].w1[0], kNetworkSize, parameters_[i].w1[0],
                  means_[i].w1[0], squares_[i].w1[0]);
  }
}

}  // namespace capstan::darkroom
