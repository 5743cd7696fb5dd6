// SPDX-License-Identifier: Apache-2.0
//
// VRPO against its formula written out, number by number.
#include "plugins/llada/masked_diffusion/vrpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plugins/llada/masked_diffusion/masked_diffusion.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan::masked_diffusion {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 8;
constexpr int64_t kMask = 7;
constexpr int64_t kNone = kVocab;  // no neighbour

// [kVocab + 1, kVocab] float64.
at::Tensor Table(double phase, double scale) {
  at::Tensor table = at::zeros({kVocab + 1, kVocab}, at::kDouble);
  for (int64_t i = 0; i < table.numel(); ++i) {
    table.mutable_data_ptr<double>()[i] =
        scale * std::sin(phase + 1.7 * static_cast<double>(i));
  }
  return table;
}

// A token's logits are a row for its left neighbour, to which an adapter adds
// one of its own, and a row for its right one.
class PairModel final : public IdleModel, public TokenModel, public RowLosses {
 public:
  explicit PairModel(double adapter = -1.0) : IdleModel({}, 2) {
    if (adapter >= 0.0) adapter_ = Table(3.0, adapter).set_requires_grad(true);
  }

  TokenModel* token_model() override { return this; }
  int64_t vocab_size() const override { return kVocab; }
  int64_t max_positions() const override { return 32; }
  bool causal() const override { return false; }
  int64_t mask_token() const override { return kMask; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return absl::UnimplementedError("it has none");
  }
  at::Tensor Logits(const TokenInput&, UnitRunner&) override { return {}; }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return {};
  }
  RowLosses* row_losses() override { return this; }
  at::Tensor CrossEntropyRows(const TokenInput& input,
                              const at::Tensor& targets,
                              UnitRunner& runner) override {
    inputs.push_back(input);
    const at::Tensor logits = runner.Run(
        0, Neighbours(input, -1),
        [left = Left(), right = right_,
         other = Neighbours(input, 1)](const at::Tensor& x) {
          return at::embedding(left, x) + at::embedding(right, other);
        });
    return runner.Run(1, logits, [targets](const at::Tensor& x) {
      const at::Tensor chosen =
          at::log_softmax(x, 2)
              .gather(2, targets[0].clamp_min(0).unsqueeze(2))
              .squeeze(2);
      return -(chosen * targets[0].ge(0)).sum(1).unsqueeze(0);
    });
  }
  bool has_adapter() const override { return adapter_.defined(); }
  void SetAdapterEnabled(bool enabled) override { enabled_ = enabled; }

  // log p of `token` between its neighbours.
  double LogP(int64_t left, int64_t token, int64_t right, bool reference) {
    SetAdapterEnabled(!reference);
    const at::Tensor logits = (Left()[left] + right_[right]).detach();
    SetAdapterEnabled(true);
    return (logits[token] - logits.logsumexp(0)).item<double>();
  }

  at::Tensor left = Table(1.0, 1.0);
  std::vector<TokenInput> inputs;

 private:
  at::Tensor Left() const {
    return has_adapter() && enabled_ ? left + adapter_ : left;
  }
  // Of the same text.
  static at::Tensor Neighbours(const TokenInput& input, int64_t step) {
    const int64_t length = input.tokens.size(1);
    at::Tensor found = at::full(input.tokens.sizes(), kNone, at::kLong);
    for (int64_t b = 0; b < input.tokens.size(0); ++b) {
      for (int64_t t = 0; t < length; ++t) {
        const int64_t other = t + step;
        if (other < 0 || other >= length) continue;
        const int64_t later = std::max(t, other);
        const bool begins = input.positions.defined() &&
                            input.positions[b][later].item<int64_t>() == 0;
        if (!begins) found[b][t] = input.tokens[b][other];
      }
    }
    return found;
  }

  const at::Tensor right_ = Table(2.0, 1.0);
  at::Tensor adapter_;
  bool enabled_ = true;
};

struct Text {
  std::vector<int64_t> ids;
  size_t prompt;
};

// Chosen and rejected.
const std::pair<Text, Text> kPairs[] = {
    {{{1, 2, 3, 4, 5}, 2}, {{1, 2, 6}, 2}},
    {{{0, 6, 5}, 1}, {{0, 1, 1, 2, 3, 4, 2}, 1}},
};

Batch BatchOf(const std::vector<int64_t>& pairs) {
  constexpr int64_t kLength = 7;
  const auto n = static_cast<int64_t>(pairs.size());
  Batch batch;
  batch[kInputIds] = at::full({2 * n, kLength}, 0, at::kLong);
  batch[kLabels] = at::full({2 * n, kLength}, kIgnoredTarget, at::kLong);
  batch[kTokenCounts] = at::full({2 * n}, 0, at::kLong);
  batch[kPairKeys] = at::full({n}, 0, at::kLong);
  batch[kSamplePosition] = at::full({n}, 0, at::kLong);
  for (int64_t i = 0; i < n; ++i) {
    batch[kSamplePosition][i] = pairs[i];
    for (const bool rejected : {false, true}) {
      const auto& pair = kPairs[pairs[i]];
      const Text& text = rejected ? pair.second : pair.first;
      const int64_t row = rejected ? n + i : i;
      const auto count = static_cast<int64_t>(text.ids.size());
      batch[kTokenCounts][row] = count;
      for (int64_t t = 0; t < count; ++t) {
        batch[kInputIds][row][t] = text.ids[t];
        if (t >= static_cast<int64_t>(text.prompt)) {
          batch[kLabels][row][t] = text.ids[t];
        }
      }
    }
  }
  return batch;
}

constexpr double kEps = 1e-3;

// B of a text by the masks of its place in the run.
double BoundOf(PairModel& model, const Text& text, int64_t place,
               const NoiseKey& key, int64_t samples, bool reference) {
  double bound = 0.0;
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t sample = place * samples + s;
    const double p = (1.0 - kEps) * Uniform(key.t, 0, sample) + kEps;
    std::vector<int64_t> noisy = text.ids;
    for (size_t i = text.prompt; i < noisy.size(); ++i) {
      if (Uniform(key.mask, i, sample) < p) noisy[i] = kMask;
    }
    for (size_t i = 0; i < noisy.size(); ++i) {
      if (noisy[i] != kMask) continue;
      bound +=
          model.LogP(i == 0 ? kNone : noisy[i - 1], text.ids[i],
                     i + 1 == noisy.size() ? kNone : noisy[i + 1], reference) /
          p;
    }
  }
  return bound / static_cast<double>(samples);
}

StepInfo Training(uint64_t seed = 5) {
  StepInfo info;
  info.training = true;
  info.seed = seed;
  return info;
}

VrpoOptions Samples(int64_t samples) {
  VrpoOptions options;
  options.beta = 0.3;
  options.bound_samples = samples;
  options.eps = kEps;
  return options;
}

LossSum Compute(const VrpoOptions& options, PairModel& model,
                const Batch& batch, const StepInfo& info = Training()) {
  PlainRunner runner;
  return Vrpo(options).Compute(model, kMask, batch, info, runner);
}

// A metric's sum, in the order of RewardMetricNames.
enum { kChosen, kRejected, kAccuracy, kMargin, kChosenBound, kRejectedBound };
double Value(const LossSum& loss, int metric) {
  return loss.metrics[metric][0].item<double>();
}

// The sum of the losses of both pairs, and of their margins.
std::pair<double, double> ByHand(PairModel& model, const VrpoOptions& options) {
  const NoiseKey key = NoiseKey::ForTraining(Training().seed);
  double sum = 0.0, margins = 0.0;
  for (const int64_t i : {0, 1}) {
    const auto lead = [&](const Text& text, int64_t place) {
      const auto bound = [&](bool reference) {
        return BoundOf(model, text, place, key, options.bound_samples,
                       reference);
      };
      return bound(false) - bound(true);
    };
    const double margin = options.beta * (lead(kPairs[i].first, 2 * i) -
                                          lead(kPairs[i].second, 2 * i + 1));
    sum += std::log1p(std::exp(-margin));
    margins += margin;
  }
  return {sum, margins};
}

TEST(VrpoTest, TheLossIsDposOfTheBounds) {
  PairModel model(/*adapter=*/0.5);
  const LossSum loss = Compute(Samples(4), model, BatchOf({1, 0}));
  const auto [sum, margins] = ByHand(model, Samples(4));
  EXPECT_NEAR(loss.sum.item<double>(), sum, 1e-5);
  EXPECT_NEAR(Value(loss, kMargin), margins, 1e-5);
  EXPECT_GT(std::abs(margins), 1e-2);
  EXPECT_EQ(loss.count, 2);
  EXPECT_EQ(loss.trained, 3 + 1 + 2 + 6);
  EXPECT_EQ(loss.metrics.size(0), Vrpo(Samples(4)).metrics().size());
}

// Draws are keyed by the text's place in the run, not by its row.
TEST(VrpoTest, APairIsTheSameInEveryBatch) {
  PairModel model(/*adapter=*/0.5);
  const VrpoOptions options = Samples(3);
  const LossSum both = Compute(options, model, BatchOf({0, 1}));
  const LossSum first = Compute(options, model, BatchOf({0}));
  const LossSum second = Compute(options, model, BatchOf({1}));
  EXPECT_DOUBLE_EQ(both.sum.item<double>(),
                   first.sum.item<double>() + second.sum.item<double>());
}

TEST(VrpoTest, PromptsAndPaddingAreNeverMasked) {
  PairModel model(/*adapter=*/0.5);
  const Batch batch = BatchOf({0, 1});
  Compute(Samples(64), model, batch);
  const at::Tensor masked = model.inputs.back().tokens.eq(kMask);
  ASSERT_EQ(masked.size(0), 64 * 4);
  const at::Tensor ever = masked.view({64, 4, -1}).any(0);
  EXPECT_TRUE(ever.equal(batch.at(kLabels).ge(0)));
}

// With the same draws for both, equal models have equal bounds to the bit.
TEST(VrpoTest, AModelThatIsItsReferenceIsNotAhead) {
  PairModel model(/*adapter=*/0.0);
  const LossSum loss = Compute(Samples(8), model, BatchOf({0, 1}));
  for (const int metric : {kChosen, kRejected, kAccuracy, kMargin}) {
    EXPECT_EQ(Value(loss, metric), 0.0) << metric;
  }
  EXPECT_NEAR(loss.sum.item<double>(), 2 * std::log(2.0), 1e-6);
  loss.sum.backward();  // and yet learns
}

TEST(VrpoTest, WithoutAnAdapterTheReferenceIsWhatTrainingBeganWith) {
  PairModel model;
  const Vrpo vrpo(Samples(4));
  PlainRunner runner;
  RolloutInfo info;
  info.seed = Training().seed;
  const auto rolled_out = [&] {
    std::vector<Batch> batches = {BatchOf({0}), BatchOf({1})};
    EXPECT_TRUE(vrpo.Rollout(model, kMask, &batches, info, runner).ok());
    return batches;
  };
  for (const Batch& batch : rolled_out()) {
    const LossSum loss = vrpo.Compute(model, kMask, batch, Training(), runner);
    EXPECT_EQ(Value(loss, kChosen), 0.0);
    EXPECT_EQ(Value(loss, kMargin), 0.0);
  }
  // The model has learnt what an adapter adds above.
  const at::Tensor initial = model.left;
  const at::Tensor learnt = initial + Table(3.0, 0.5);
  model.left = learnt;
  info.with_initial_weights =
      [&](const std::function<absl::Status()>& forwards) {
        model.left = initial;
        const absl::Status status = forwards();
        model.left = learnt;
        return status;
      };
  double sum = 0.0;
  for (const Batch& batch : rolled_out()) {
    sum += vrpo.Compute(model, kMask, batch, Training(), runner)
               .sum.item<double>();
  }
  PairModel adapted(/*adapter=*/0.5);
  EXPECT_NEAR(sum, ByHand(adapted, Samples(4)).first, 1e-5);
}

TEST(VrpoTest, AnEvaluationWithoutReferenceHasBoundsAlone) {
  PairModel model;
  StepInfo evaluation;
  const LossSum loss = Compute(Samples(4), model, BatchOf({0, 1}), evaluation);
  EXPECT_EQ(loss.count, 0);
  for (int metric = 0; metric <= kRejectedBound; ++metric) {
    EXPECT_EQ(loss.metrics[metric][1].item<double>(),
              metric < kChosenBound ? 0.0 : 2.0);
  }
  EXPECT_LT(Value(loss, kChosenBound), 0.0);
  // With an adapter it has all.
  PairModel adapted(/*adapter=*/0.5);
  EXPECT_EQ(Compute(Samples(4), adapted, BatchOf({0, 1}), evaluation).count, 2);
}

double Variance(const std::vector<double>& values) {
  double mean = 0.0, squares = 0.0;
  for (const double value : values) mean += value / values.size();
  for (const double value : values) squares += std::pow(value - mean, 2);
  return squares / static_cast<double>(values.size());
}

// Section 3's first and third reduction; the second, a t for each mask, is how
// bounds are estimated.
TEST(VrpoTest, MoreDrawsAndSharedOnesLowerTheVariance) {
  PairModel model(/*adapter=*/0.2);
  constexpr int kSeeds = 400;
  VrpoOptions options = Samples(1);
  options.eps = 0.1;  // bounds the tails of 1 / p, of which a few draws decide
  std::vector<double> margins[2], shared, apart;
  double before = 0.0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    for (const bool many : {false, true}) {
      const LossSum loss =
          Compute(Samples(many ? 8 : 1), model, BatchOf({1}), Training(seed));
      margins[many].push_back(Value(loss, kMargin));
      if (many) continue;
      const double bound = Value(loss, kRejectedBound);
      const double lead = Value(loss, kRejected) / options.beta;
      shared.push_back(lead);
      // The reference's bound is that of other draws.
      apart.push_back(bound - before);
      before = bound - lead;
    }
  }
  // Means of eight independent draws have an eighth.
  EXPECT_LT(Variance(margins[1]), 0.2 * Variance(margins[0]));
  EXPECT_LT(Variance(shared), 0.1 * Variance(apart));
}

TEST(VrpoTest, ConfigsAreChecked) {
  const auto error = [](const std::function<void(Config*)>& set) {
    Config config;
    set(&config);
    return std::string(MaskedDiffusion::Create(config).status().message());
  };
  EXPECT_EQ(error([](Config* c) { c->set_loss(Config::VRPO); }), "");
  EXPECT_THAT(error([](Config* c) { c->set_beta(0.2); }),
              HasSubstr("is for loss: VRPO"));
  EXPECT_THAT(error([](Config* c) { c->set_bound_samples(4); }),
              HasSubstr("is for loss: VRPO"));
  EXPECT_THAT(error([](Config* c) {
                c->set_loss(Config::VRPO);
                c->set_bound_samples(0);
              }),
              HasSubstr("1 or more"));
  EXPECT_THAT(error([](Config* c) {
                c->set_loss(Config::VRPO);
                c->set_beta(0.0);
              }),
              HasSubstr("greater than 0"));
  EXPECT_THAT(error([](Config* c) {
                c->set_loss(Config::VRPO);
                c->set_random_length_ratio(0.1);
              }),
              HasSubstr("compares whole answers"));
}

}  // namespace
}  // namespace capstan::masked_diffusion
