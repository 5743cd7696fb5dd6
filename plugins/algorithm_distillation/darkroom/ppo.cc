// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/ppo.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
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

void Initialise(uint64_t seed, const char* name, int inputs, int outputs,
                double gain, Network* net) {
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
  fill(0, inputs, root2, net->w1[0]);
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

constexpr uint8_t kFirstOfRegion = 1, kLastOfRegion = 2;

// 32 random bits for each i of a row, generated four at a time.
class BitsOfRow {
 public:
  BitsOfRow(uint64_t key, uint64_t row) : key_(key), row_(row) {}

  uint32_t operator()(uint64_t i) {
    if (i / 4 != block_) {
      block_ = i / 4;
      bits_ = RandomBits(key_, block_, row_);
    }
    return bits_[i % 4];
  }

 private:
  const uint64_t key_, row_;
  uint64_t block_ = ~uint64_t{0};
  std::array<uint32_t, 4> bits_;
};

}  // namespace

int64_t Observations::count() const {
  int64_t count = 1;
  for (int i = 0; i < spec_.numbers; ++i) {
    count = std::min(kMost + 1, count * spec_.bounds[i]);
  }
  return count;
}

int64_t Observations::IndexOf(const uint8_t* observation) const {
  int64_t index = 0;
  for (int i = 0; i < spec_.numbers; ++i) {
    index = index * spec_.bounds[i] + observation[i];
  }
  return index;
}

void Observations::Write(int64_t index, float* numbers) const {
  for (int i = spec_.numbers; i-- > 0; index /= spec_.bounds[i]) {
    numbers[i] = static_cast<float>(index % spec_.bounds[i]);
  }
}

absl::Status CheckLearnable(const EnvironmentSpec& spec) {
  for (const auto& [what, is, most] :
       {std::tuple<const char*, int64_t, int64_t>{"actions", spec.actions,
                                                  kOutputs},
        {"numbers in an observation", spec.numbers, kInputs},
        {"different observations", Observations(spec).count(),
         Observations::kMost}}) {
    if (is <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "has more than ", most, " ", what,
        ", too many for the learners: collect its histories with another "
        "program (docs/algorithm_distillation.md has the file's format)"));
  }
  return absl::OkStatus();
}

PpoNetworks::PpoNetworks(const EnvironmentSpec& spec, uint64_t seed)
    : kernels_(BestPpoKernels()),
      observations_(spec),
      actions_(spec.actions),
      parameters_(),
      gradient_(),
      means_(),
      squares_(),
      row_of_(observations_.count(), -1) {
  const int inputs = spec.numbers;
  Initialise(seed, "darkroom.actor", inputs, actions_, 0.01, &parameters_[0]);
  Initialise(seed, "darkroom.critic", inputs, 1, 1.0, &parameters_[1]);
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
    observations_.Write(r < count ? rows_[r] : 0, &inputs_[r * kInputs]);
  }
  kernels_.forward(parameters_[0], inputs_.data(), rows, actions_,
                   actor_.h1.data(), actor_.h2.data(), actor_.out.data());
  kernels_.forward(parameters_[1], inputs_.data(), rows, 1, critic_.h1.data(),
                   critic_.h2.data(), critic_.out.data());
  NormaliseLogits();
}

void PpoNetworks::NormaliseLogits() {
  for (size_t r = 0; r < rows_.size(); ++r) {
    float* const logits = &actor_.out[r * kOutputs];
    const float most = *std::max_element(logits, logits + actions_);
    float sum = 0.0f;
    for (int a = 0; a < actions_; ++a) sum += std::exp(logits[a] - most);
    const float log_sum = most + std::log(sum);
    for (int a = 0; a < actions_; ++a) logits[a] -= log_sum;
  }
}

void PpoNetworks::Evaluate(std::vector<float>* log_probabilities,
                           std::vector<float>* values) {
  const int64_t count = observations_.count();
  log_probabilities->resize(count * actions_);
  values->resize(count);
  for (int64_t begin = 0; begin < count; begin += kEvaluateRows) {
    const int64_t end = std::min(count, begin + kEvaluateRows);
    rows_.clear();
    for (int64_t i = begin; i < end; ++i) {
      rows_.push_back(static_cast<uint16_t>(i));
    }
    Forward();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i - begin;
      std::copy_n(&actor_.out[r * kOutputs], actions_,
                  &(*log_probabilities)[i * actions_]);
      (*values)[i] = critic_.out[r * kOutputs];
    }
  }
}

int64_t PpoNetworks::AssignRows(const PpoSample* samples, int count) {
  rows_.clear();
  row_counts_.clear();
  for (int i = 0; i < count; ++i) {
    int32_t& row = row_of_[samples[i].observation];
    if (row < 0) {
      row = static_cast<int32_t>(rows_.size());
      rows_.push_back(samples[i].observation);
      row_counts_.push_back(0);
    }
    ++row_counts_[row];
  }
  return static_cast<int64_t>(rows_.size());
}

// The entropy's mean, and its gradient by the logits:
// -p (log p + entropy) each.
double PpoNetworks::AddEntropy(const PpoSettings& settings, int count) {
  double mean = 0.0;
  const float weight = static_cast<float>(settings.entropy_weight / count);
  for (size_t r = 0; r < rows_.size(); ++r) {
    const float* const log_p = &actor_.out[r * kOutputs];
    float entropy = 0.0f;
    for (int a = 0; a < actions_; ++a) entropy -= std::exp(log_p[a]) * log_p[a];
    for (int a = 0; a < actions_; ++a) {
      actor_.d_out[r * kOutputs + a] +=
          weight * row_counts_[r] * std::exp(log_p[a]) * (log_p[a] + entropy);
    }
    mean += static_cast<double>(entropy) * row_counts_[r] / count;
  }
  return mean;
}

// The losses of each sample, and their gradients by its row's outputs; of the
// logits, those by the log-probability of the action.
double PpoNetworks::SampleGradients(const PpoSettings& settings,
                                    const PpoSample* samples, int count) {
  const auto [mean, deviation] = AdvantageScale(samples, count);
  const float low = static_cast<float>(1.0 - settings.clip_range);
  const float high = static_cast<float>(1.0 + settings.clip_range);
  const float scale = 1.0f / static_cast<float>(count);
  const float value_scale =
      static_cast<float>(2.0 * settings.value_weight / count);
  double policy = 0.0, value = 0.0;
  for (int i = 0; i < count; ++i) {
    const PpoSample& sample = samples[i];
    const int64_t at = int64_t{row_of_[sample.observation]} * kOutputs;
    const float ratio =
        std::exp(actor_.out[at + sample.action] - sample.log_probability);
    const float advantage =
        static_cast<float>((sample.advantage - mean) / deviation);
    const float clipped = std::clamp(ratio, low, high);
    policy -= std::min(ratio * advantage, clipped * advantage) * double{scale};
    // If the clipped term is the smaller one, nothing depends on the ratio.
    if (advantage > 0.0f ? ratio <= high : ratio >= low) {
      actor_.d_out[at + sample.action] -= scale * advantage * ratio;
    }
    const float error = critic_.out[at] - sample.target;
    value += double{error} * error * scale;
    critic_.d_out[at] += value_scale * error;
  }
  return policy + settings.value_weight * value;
}

double PpoNetworks::Gradient(const PpoSettings& settings,
                             const PpoSample* samples, int count) {
  const int64_t used = AssignRows(samples, count);
  Forward();
  std::fill(actor_.d_out.begin(), actor_.d_out.end(), 0.0f);
  std::fill(critic_.d_out.begin(), critic_.d_out.end(), 0.0f);
  double loss = SampleGradients(settings, samples, count);
  // From log-probabilities to logits: subtract each one's share of the sum.
  for (int64_t r = 0; r < used; ++r) {
    float* const d = &actor_.d_out[r * kOutputs];
    float sum = 0.0f;
    for (int a = 0; a < actions_; ++a) sum += d[a];
    for (int a = 0; a < actions_; ++a) {
      d[a] -= sum * std::exp(actor_.out[r * kOutputs + a]);
    }
    row_of_[rows_[r]] = -1;
  }
  if (settings.entropy_weight != 0.0) {
    loss -= settings.entropy_weight * AddEntropy(settings, count);
  }
  const int64_t rows = WholeBlocks(used);
  kernels_.backward(parameters_[0], inputs_.data(), actor_.d_out.data(), rows,
                    actions_, actor_.h1.data(), actor_.h2.data(),
                    &gradient_[0]);
  kernels_.backward(parameters_[1], inputs_.data(), critic_.d_out.data(), rows,
                    1, critic_.h1.data(), critic_.h2.data(), &gradient_[1]);
  return loss;
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

void EstimateAdvantages(double discount, double lambda, int64_t steps,
                        int64_t streams, const int* rewards,
                        const uint8_t* dones, const float* values,
                        float* advantages) {
  const float discounted = static_cast<float>(discount);
  const float decay = static_cast<float>(discount * lambda);
  std::vector<float> later(streams, 0.0f);
  for (int64_t i = steps * streams - 1; i >= 0; --i) {
    const float goes_on = dones[i] ? 0.0f : 1.0f;
    const float surprise = static_cast<float>(rewards[i]) +
                           discounted * values[i + streams] * goes_on -
                           values[i];
    float& advantage = later[i % streams];
    advantage = surprise + decay * goes_on * advantage;
    advantages[i] = advantage;
  }
}

PpoLearner::PpoLearner(const PpoSettings& settings,
                       const Environment& environment, int task,
                       int64_t streams, uint64_t seed)
    : settings_(settings),
      streams_(streams),
      action_key_(RandomKey(seed, "darkroom.actions")),
      order_key_(RandomKey(seed, "darkroom.minibatches")),
      play_(environment, std::vector<int>(streams, task)),
      observations_(play_.spec()),
      networks_(play_.spec(), seed),
      samples_(settings.steps_per_update * streams),
      rewards_(samples_.size()),
      dones_(samples_.size()),
      minibatch_(settings.minibatch_size),
      order_(samples_.size()),
      returns_(streams) {
  history_.streams = streams;
  history_.numbers = play_.spec().numbers;
  history_.least_reward = play_.spec().least_reward;
}

void PpoLearner::Update() {
  networks_.Evaluate(&log_probabilities_, &values_);
  CollectSteps();
  Judge();
  Learn();
  ++updates_;
}

void PpoLearner::CollectSteps() {
  const int choices = play_.spec().actions;
  // Cumulative probabilities, to sample actions by a uniform number.
  std::vector<float> sums(log_probabilities_.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = std::exp(log_probabilities_[i]) +
              (i % choices == 0 ? 0.0f : sums[i - 1]);
  }
  std::vector<uint8_t> actions(streams_);
  int64_t ended = 0, total = 0;
  for (int64_t t = 0; t < settings_.steps_per_update; ++t, ++steps_) {
    PpoSample* const samples = &samples_[t * streams_];
    int* const rewards = &rewards_[t * streams_];
    const std::vector<uint8_t> before = play_.observations();
    BitsOfRow bits(action_key_, steps_);
    for (int64_t s = 0; s < streams_; ++s) {
      const int64_t at =
          observations_.IndexOf(&before[s * observations_.numbers()]);
      const float u = static_cast<float>(bits(s) >> 8) * 0x1p-24f;
      int action = 0;
      while (action < choices - 1 && u >= sums[at * choices + action]) {
        ++action;
      }
      actions[s] = static_cast<uint8_t>(action);
      samples[s].observation = static_cast<uint16_t>(at);
      samples[s].action = static_cast<uint16_t>(action);
      samples[s].log_probability = log_probabilities_[at * choices + action];
    }
    play_.Step(actions.data(), rewards);
    const bool done = play_.done();
    std::fill_n(&dones_[t * streams_], streams_, done);
    for (int64_t s = 0; s < streams_; ++s) returns_[s] += rewards[s];
    if (done) {
      play_.Reset();
      total += std::accumulate(returns_.begin(), returns_.end(), int64_t{0});
      ended += streams_;
      std::fill(returns_.begin(), returns_.end(), 0);
    }
    Record(actions.data(), rewards, before, t == 0,
           t + 1 == settings_.steps_per_update);
  }
  if (ended > 0) mean_return_ = static_cast<double>(total) / ended;
}

void PpoLearner::Record(const uint8_t* actions, const int* rewards,
                        const std::vector<uint8_t>& before, bool first,
                        bool last) {
  const auto append = [](const std::vector<uint8_t>& from,
                         std::vector<uint8_t>* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  History& h = history_;
  ++h.steps;
  append(before, &h.states);
  append(play_.observations(), &h.next_states);
  h.actions.insert(h.actions.end(), actions, actions + streams_);
  for (int64_t s = 0; s < streams_; ++s) {
    h.rewards.push_back(play_.spec().RewardByte(rewards[s]));
  }
  // A step that leads to step 0 has ended its episode.
  h.dones.insert(h.dones.end(), streams_, play_.step() == 0);
  h.compress_markers.insert(h.compress_markers.end(), streams_,
                            first  ? kFirstOfRegion
                            : last ? kLastOfRegion
                                   : 0);
}

void PpoLearner::Judge() {
  const int64_t count = static_cast<int64_t>(samples_.size());
  std::vector<float> values(count + streams_), advantages(count);
  for (int64_t i = 0; i < count; ++i)
    values[i] = values_[samples_[i].observation];
  for (int64_t s = 0; s < streams_; ++s) {
    values[count + s] = values_[observations_.IndexOf(play_.observation(s))];
  }
  EstimateAdvantages(settings_.discount, settings_.gae_lambda,
                     settings_.steps_per_update, streams_, rewards_.data(),
                     dones_.data(), values.data(), advantages.data());
  for (int64_t i = 0; i < count; ++i) {
    samples_[i].advantage = advantages[i];
    samples_[i].target = advantages[i] + values[i];
  }
}

void PpoLearner::Learn() {
  const int64_t count = static_cast<int64_t>(samples_.size());
  std::iota(order_.begin(), order_.end(), 0);
  for (int64_t epoch = 0; epoch < settings_.epochs; ++epoch) {
    BitsOfRow bits(order_key_, updates_ * settings_.epochs + epoch);
    for (int64_t i = count - 1; i > 0; --i) {
      std::swap(order_[i], order_[(uint64_t{bits(i)} * (i + 1)) >> 32]);
    }
    for (int64_t begin = 0; begin < count;) {
      const int64_t end = std::min(begin + settings_.minibatch_size, count);
      for (int64_t i = begin; i < end; ++i) {
        minibatch_[i - begin] = samples_[order_[i]];
      }
      networks_.Step(settings_, minibatch_.data(),
                     static_cast<int>(end - begin));
      begin = end;
    }
  }
}

}  // namespace capstan::darkroom
