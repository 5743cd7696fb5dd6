// SPDX-License-Identifier: Apache-2.0
#include "datasets/darkroom/ppo.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace capstan::darkroom {
namespace {

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

void EstimateAdvantages(double discount, double lambda, int64_t steps,
                        int64_t streams, const uint8_t* rewards,
                        const uint8_t* dones, const float* values,
                        float* advantages) {
  const float discounted = static_cast<float>(discount);
  const float decay = static_cast<float>(discount * lambda);
  std::vector<float> later(streams, 0.0f);
  for (int64_t i = steps * streams - 1; i >= 0; --i) {
    const float goes_on = dones[i] ? 0.0f : 1.0f;
    const float surprise =
        rewards[i] + discounted * values[i + streams] * goes_on - values[i];
    float& advantage = later[i % streams];
    advantage = surprise + decay * goes_on * advantage;
    advantages[i] = advantage;
  }
}

PpoLearner::PpoLearner(const PpoSettings& settings, const Room& room,
                       const Task& task, int64_t streams, uint64_t seed)
    : settings_(settings),
      streams_(streams),
      action_key_(RandomKey(seed, "darkroom.actions")),
      order_key_(RandomKey(seed, "darkroom.minibatches")),
      rooms_(room, std::vector<Task>(streams, task)),
      networks_(room.size, seed),
      samples_(settings.steps_per_update * streams),
      rewards_(samples_.size()),
      dones_(samples_.size()),
      minibatch_(settings.minibatch_size),
      order_(samples_.size()),
      returns_(streams) {
  history_.streams = streams;
}

void PpoLearner::Update() {
  networks_.Evaluate(&log_probabilities_, &values_);
  CollectSteps();
  Judge();
  Learn();
  ++updates_;
}

void PpoLearner::CollectSteps() {
  // Cumulative probabilities, to sample actions by a uniform number.
  std::vector<float> sums(log_probabilities_.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = std::exp(log_probabilities_[i]) +
              (i % kActions == 0 ? 0.0f : sums[i - 1]);
  }
  std::vector<uint8_t> actions(streams_);
  int64_t ended = 0, total = 0;
  for (int64_t t = 0; t < settings_.steps_per_update; ++t, ++steps_) {
    PpoSample* const samples = &samples_[t * streams_];
    uint8_t* const rewards = &rewards_[t * streams_];
    const std::vector<Cell> before = rooms_.states();
    BitsOfRow bits(action_key_, steps_);
    for (int64_t s = 0; s < streams_; ++s) {
      const int cell = CellOf(before[s]);
      const float u = static_cast<float>(bits(s) >> 8) * 0x1p-24f;
      int action = 0;
      while (action < kActions - 1 && u >= sums[cell * kActions + action]) {
        ++action;
      }
      actions[s] = static_cast<uint8_t>(action);
      samples[s].cell = static_cast<uint16_t>(cell);
      samples[s].action = static_cast<uint16_t>(action);
      samples[s].log_probability = log_probabilities_[cell * kActions + action];
    }
    rooms_.Step(actions.data(), rewards);
    const bool done = rooms_.done();
    std::fill_n(&dones_[t * streams_], streams_, done);
    for (int64_t s = 0; s < streams_; ++s) returns_[s] += rewards[s];
    if (done) {
      rooms_.Reset();
      total += std::accumulate(returns_.begin(), returns_.end(), int64_t{0});
      ended += streams_;
      std::fill(returns_.begin(), returns_.end(), 0);
    }
    Record(actions.data(), rewards, before, t == 0,
           t + 1 == settings_.steps_per_update);
  }
  if (ended > 0) mean_return_ = static_cast<double>(total) / ended;
}

void PpoLearner::Record(const uint8_t* actions, const uint8_t* rewards,
                        const std::vector<Cell>& before, bool first,
                        bool last) {
  const auto append_cells = [](const std::vector<Cell>& cells,
                               std::vector<uint8_t>* to) {
    for (const Cell& cell : cells) {
      to->push_back(cell.row);
      to->push_back(cell.column);
    }
  };
  History& h = history_;
  ++h.steps;
  append_cells(before, &h.states);
  append_cells(rooms_.states(), &h.next_states);
  h.actions.insert(h.actions.end(), actions, actions + streams_);
  h.rewards.insert(h.rewards.end(), rewards, rewards + streams_);
  // A step that leads to step 0 has ended its episode.
  h.dones.insert(h.dones.end(), streams_, rooms_.step() == 0);
  h.compress_markers.insert(h.compress_markers.end(), streams_,
                            first  ? kFirstOfRegion
                            : last ? kLastOfRegion
                                   : 0);
}

void PpoLearner::Judge() {
  const int64_t count = static_cast<int64_t>(samples_.size());
  std::vector<float> values(count + streams_), advantages(count);
  for (int64_t i = 0; i < count; ++i) values[i] = values_[samples_[i].cell];
  for (int64_t s = 0; s < streams_; ++s) {
    values[count + s] = values_[CellOf(rooms_.states()[s])];
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
