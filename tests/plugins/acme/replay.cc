// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/plugin.h"
#include "tests/plugins/acme/replay.pb.h"

namespace acme {
namespace replay {
namespace {

using capstan::Batch;
using capstan::LossSum;
using capstan::Model;
using capstan::RolloutInfo;
using capstan::StepInfo;
using capstan::UnitRunner;

// The start of a state; the tokens of a row follow.
struct Header {
  int64_t version = 0;
  double sum = 0.0;  // of all rewards
  int64_t count = 0;
  int64_t length = 0;
};

class Replay final : public capstan::Objective {
 public:
  static absl::StatusOr<std::unique_ptr<Replay>> Create(const Config& config) {
    if (config.new_tokens() < 1) {
      return capstan::FieldError("new_tokens", "must be greater than 0");
    }
    return std::unique_ptr<Replay>(new Replay(config));
  }

  absl::Status Check(Model& model,
                     const capstan::DatasetReader&) const override {
    capstan::TokenModel* const tokens = model.token_model();
    if (tokens != nullptr && tokens->causal()) return absl::OkStatus();
    return absl::InvalidArgumentError("needs a causal token model");
  }

  int64_t CountTargets(const Batch& batch, const StepInfo&) const override {
    return Targets(batch).ge(0).sum().item<int64_t>();
  }

  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override {
    capstan::TokenInput input;
    input.tokens = capstan::RequiredTensor(batch, capstan::kInputIds);
    capstan::TokenTargets targets;
    targets.tokens = Targets(batch);
    const auto weights = batch.find(kWeights);
    if (weights != batch.end()) {
      targets.weights =
          weights->second.unsqueeze(1).expand_as(targets.tokens).contiguous();
    }
    LossSum loss;
    loss.sum = model.token_model()->CrossEntropySum(input, targets, runner);
    loss.count = CountTargets(batch, info);
    const capstan::TokenTotals totals = capstan::CountTokens(batch);
    loss.tokens = totals.tokens;
    loss.padding = totals.padding;
    return loss;
  }

  absl::StatusOr<std::vector<int64_t>> Sample(Model&,
                                              const std::vector<int64_t>&,
                                              const capstan::SampleOptions&,
                                              UnitRunner&) override {
    return absl::UnimplementedError("it has no samples");
  }

  std::string SaveState() const override {
    if (count_ == 0) return "";
    Header header;
    header.version = config_.version();
    header.sum = sum_;
    header.count = count_;
    header.length = static_cast<int64_t>(kept_.size());
    std::string state(sizeof(header) + kept_.size() * sizeof(int64_t), '\0');
    std::memcpy(&state[0], &header, sizeof(header));
    std::copy(kept_.begin(), kept_.end(),
              reinterpret_cast<int64_t*>(&state[sizeof(header)]));
    return state;
  }

  absl::Status RestoreState(absl::string_view state) override {
    Header header;
    if (state.size() >= sizeof(header)) {
      std::memcpy(&header, state.data(), sizeof(header));
    }
    const size_t rest = state.size() - std::min(state.size(), sizeof(header));
    const size_t tokens = rest / sizeof(int64_t);
    if (header.version != config_.version() || header.count < 1 ||
        !std::isfinite(header.sum) ||
        header.length != static_cast<int64_t>(tokens) ||
        rest != tokens * sizeof(int64_t)) {
      return absl::InvalidArgumentError("isn't a state of this version");
    }
    sum_ = header.sum;
    count_ = header.count;
    kept_.resize(tokens);
    std::memcpy(kept_.data(), state.data() + sizeof(header),
                tokens * sizeof(int64_t));
    return absl::OkStatus();
  }

  bool has_rollouts() const override { return true; }

  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const RolloutInfo& info, UnitRunner& runner) override {
    const bool fails =
        info.rank == config_.rank() && info.step == config_.step();
    if (fails && config_.fault() == Config::THROW) {
      throw std::runtime_error("no reward");
    }
    if (fails && config_.fault() == Config::ERROR) {
      return absl::DataLossError("the rewards are lost");
    }
    Write(model, batches, info, runner);
    const double mean = count_ > 0 ? sum_ / static_cast<double>(count_) : 0.5;
    for (Batch& batch : *batches) Weigh(mean, info.step, &batch);
    if (fails && config_.fault() == Config::DROP_ROW) {
      at::Tensor& ids = batches->front()[capstan::kInputIds];
      ids = ids.narrow(0, 1, ids.size(0) - 1);
    }
    if (fails && config_.fault() == Config::DROP_BATCH) batches->pop_back();
    return absl::OkStatus();
  }

  absl::optional<capstan::OwnCurve> own_curve() const override {
    if (config_.own_curve() == 0.0) return absl::nullopt;
    return capstan::OwnCurve{config_.own_curve(),
                             "each rank goes on from texts of its own"};
  }

 private:
  // [B] float32: of the rows' losses.
  static constexpr char kWeights[] = "replay_weights";

  explicit Replay(const Config& config) : config_(config) {}

  // [B, T]: the next token; all are trained on unless there are labels.
  static at::Tensor Targets(const Batch& batch) {
    const auto labels = batch.find(capstan::kLabels);
    const at::Tensor& wanted =
        labels != batch.end()
            ? labels->second
            : capstan::RequiredTensor(batch, capstan::kInputIds);
    at::Tensor targets = wanted.roll(-1, 1);
    targets.select(1, targets.size(1) - 1).fill_(capstan::kIgnoredTarget);
    return targets.masked_fill_(targets.lt(0), capstan::kIgnoredTarget);
  }

  int64_t NewTokens(const at::Tensor& ids) const {
    return std::min<int64_t>(config_.new_tokens(), ids.size(1) - 1);
  }

  // Replaces the end of each row. Ranks write texts of different lengths: one
  // that is done goes on with forwards that it drops.
  void Write(Model& model, std::vector<Batch>* batches, const RolloutInfo& info,
             UnitRunner& runner) const {
    struct Place {
      at::Tensor ids;
      int64_t column = 0;
      at::Tensor positions;
    };
    std::vector<Place> places;
    for (Batch& batch : *batches) {
      at::Tensor& ids = batch[capstan::kInputIds];
      ids = ids.clone();
      batch.erase(capstan::kLabels);
      const int64_t most = NewTokens(ids);
      const int64_t length = 1 + (most + info.rank + info.step) % most;
      const int64_t first = ids.size(1) - most;
      for (int64_t t = first; t < first + length; ++t) {
        places.push_back({ids, t, batch.at(capstan::kSamplePosition)});
      }
    }
    for (size_t i = 0; !info.all_done(i >= places.size()); ++i) {
      const Place& place = places[std::min(i, places.size() - 1)];
      capstan::TokenInput input;
      input.tokens = place.ids.narrow(1, 0, place.column).contiguous();
      const at::Tensor logits = model.token_model()
                                    ->LastLogits(input, runner)
                                    .select(1, 0)
                                    .to(at::kFloat);
      if (i >= places.size()) continue;
      place.ids.select(1, place.column)
          .copy_(Choose(logits, place.positions, place.column, info));
    }
  }

  // [B] tokens of [B, V] logits, keyed by the samples' positions.
  at::Tensor Choose(const at::Tensor& logits, const at::Tensor& positions,
                    int64_t column, const RolloutInfo& info) const {
    if (!config_.sampled()) return logits.argmax(1);
    const at::Tensor noise =
        at::empty(logits.sizes(), at::TensorOptions().dtype(at::kFloat));
    const at::Tensor keys = positions.cpu();
    for (int64_t row = 0; row < noise.size(0); ++row) {
      const uint64_t key = capstan::RandomKey(
          info.seed, absl::StrCat("replay ", info.step, " ", column, " ",
                                  keys[row].item<int64_t>()));
      capstan::FillNormal(
          key, 0, noise.size(1), 0.0f, 1.0f,
          noise.mutable_data_ptr<float>() + row * noise.size(1));
    }
    return (logits + noise.to(logits.device())).argmax(1);
  }

  // Puts the text that is kept in the place of the first row of even steps,
  // keeps the last row, and weighs all rows by their rewards.
  void Weigh(double mean, int64_t step, Batch* batch) {
    const at::Tensor& ids = batch->at(capstan::kInputIds);
    const int64_t length = ids.size(1);
    if (step % 2 == 0 && static_cast<int64_t>(kept_.size()) == length) {
      const at::Tensor kept = at::empty({length}, at::kLong);
      std::copy(kept_.begin(), kept_.end(), kept.mutable_data_ptr<int64_t>());
      ids.select(0, 0).copy_(kept);
    }
    const at::Tensor last = ids.select(0, ids.size(0) - 1).cpu().contiguous();
    const auto* const tokens = last.const_data_ptr<int64_t>();
    kept_.assign(tokens, tokens + length);
    const at::Tensor rewards =
        ids.ge(int{'a'}).logical_and_(ids.le(int{'z'})).to(at::kFloat).mean(1);
    (*batch)[kWeights] = rewards.sub(mean).add(1.0);
    sum_ += rewards.sum().item<double>();
    count_ += rewards.size(0);
    const at::Tensor labels = ids.clone();
    labels.narrow(1, 0, length - NewTokens(ids)).fill_(capstan::kIgnoredTarget);
    (*batch)[capstan::kLabels] = labels;
  }

  const Config config_;
  double sum_ = 0.0;
  int64_t count_ = 0;
  std::vector<int64_t> kept_;
};

CAPSTAN_PLUGIN(Objective, Replay, acme::replay::Config,
               "learns from texts that the model writes");

}  // namespace
}  // namespace replay
}  // namespace acme
