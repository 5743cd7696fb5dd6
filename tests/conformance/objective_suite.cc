// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/objective.h"

namespace capstan {
namespace conformance {
namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kLength = 12;
constexpr double kRounding = 1e-5;

// What objectives ask of data before a run.
class StubReader final : public DatasetReader {
 public:
  int64_t size() const override { return kRows; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::UnimplementedError("nothing reads it");
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return std::unique_ptr<DatasetReader>();
  }
  int64_t max_sequence_length() const override { return kLength; }
};

// Rows of text, of which the first third isn't trained on, and the last row
// ends in padding.
Batch Texts() {
  Batch batch;
  const at::Tensor ids = at::arange(kRows * kLength, at::kLong)
                             .mul_(7919)
                             .remainder_(256)
                             .view({kRows, kLength});
  const at::Tensor labels = ids.clone();
  labels.narrow(1, 0, kLength / 3).fill_(kIgnoredTarget);
  const at::Tensor counts = at::full({kRows}, kLength, at::kLong);
  counts[kRows - 1] = kLength - 2;
  labels[kRows - 1].narrow(0, kLength - 2, 2).fill_(kIgnoredTarget);
  batch[kInputIds] = ids;
  batch[kLabels] = labels;
  batch[kTokenCounts] = counts;
  batch[kSamplePosition] = at::arange(kRows, at::kLong);
  return batch;
}

Batch Row(const Batch& batch, int64_t row) {
  Batch one;
  for (const auto& [name, tensor] : batch) {
    one[name] = tensor.narrow(0, row, 1).contiguous();
  }
  return one;
}

// Counts forwards.
class CountingRunner final : public UnitRunner {
 public:
  at::Tensor Run(int, const at::Tensor& input, const Body& body) override {
    ++ran;
    return body(input);
  }
  int ran = 0;
};

void ExpectNear(double got, double want) {
  EXPECT_NEAR(got, want, kRounding * std::max(1.0, std::abs(want)));
}

// The core divides the gradients by it before any forward.
TEST_P(ObjectiveConformance, TargetsAreCountedWithoutTheLoss) {
  const Batch batch = Texts();
  StepInfo info;
  info.training = true;
  EXPECT_EQ(objective().CountTargets(batch, info), Compute(batch).count);
  EXPECT_GT(Compute(batch).count, 0);
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(objective().CountTargets(Row(batch, row), info),
              Compute(Row(batch, row)).count)
        << "row " << row;
  }
}

TEST_P(ObjectiveConformance, TheLossIsAFloatWithAGradient) {
  const LossSum loss = Compute(Texts());
  ASSERT_TRUE(loss.sum.defined());
  EXPECT_EQ(loss.sum.dim(), 0);
  EXPECT_EQ(loss.sum.scalar_type(), at::kFloat);
  EXPECT_TRUE(loss.sum.requires_grad());
  EXPECT_TRUE(std::isfinite(loss.sum.item<double>()));
  EXPECT_GT(loss.tokens, 0);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(
      std::isfinite(Compute(Texts(), /*training=*/false).sum.item<double>()));
}

// Whatever micro-batches a step is cut into.
TEST_P(ObjectiveConformance, ABatchIsTheSumOfItsRows) {
  if (objective().step_totals() > 0) {
    GTEST_SKIP() << "its terms depend on the whole step's totals";
  }
  const Batch batch = Texts();
  const LossSum whole = Compute(batch);
  double sum = 0.0;
  int64_t count = 0, tokens = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const LossSum one = Compute(Row(batch, row));
    sum += one.sum.item<double>();
    count += one.count;
    tokens += one.tokens;
  }
  ExpectNear(sum, whole.sum.item<double>());
  EXPECT_EQ(count, whole.count);
  EXPECT_EQ(tokens, whole.tokens);
}

TEST_P(ObjectiveConformance, TheSameBatchHasTheSameLoss) {
  const Batch batch = Texts();
  const double first = Compute(batch).sum.item<double>();
  Compute(Row(batch, 1));
  EXPECT_EQ(Compute(batch).sum.item<double>(), first)
      << "random numbers must be keyed by " << kSamplePosition;
}

TEST_P(ObjectiveConformance, WhatIsIgnoredIsNotTrainedOn) {
  const Batch batch = Texts();
  Batch other = batch;
  // Any negative number.
  other[kLabels] = batch.at(kLabels).masked_fill(batch.at(kLabels).lt(0), -1);
  const LossSum want = Compute(batch), got = Compute(other);
  EXPECT_EQ(got.count, want.count);
  ExpectNear(got.sum.item<double>(), want.sum.item<double>());
  EXPECT_LE(want.count, batch.at(kLabels).ge(0).sum().item<int64_t>())
      << "more targets than labels";
}

TEST_P(ObjectiveConformance, ABatchWithoutTargetsContributesNothing) {
  Batch batch = Texts();
  batch[kLabels].fill_(kIgnoredTarget);
  const LossSum loss = Compute(batch);
  EXPECT_EQ(loss.count, 0);
  EXPECT_EQ(loss.sum.item<double>(), 0.0);
}

TEST_P(ObjectiveConformance, PaddingChangesNothing) {
  const Batch batch = Texts();
  Batch other = batch;
  other[kInputIds] = batch.at(kInputIds).clone();
  other[kInputIds][kRows - 1].narrow(0, kLength - 2, 2).fill_(kStubEos);
  ExpectNear(Compute(other).sum.item<double>(),
             Compute(batch).sum.item<double>());
  EXPECT_EQ(Compute(other).tokens, Compute(batch).tokens);
}

TEST_P(ObjectiveConformance, MetricsAreWhatTheirTagsSay) {
  const size_t tags = objective().metrics().size();
  const at::NoGradGuard no_grad;
  StepInfo info;
  info.thorough = true;  // some are computed only then
  info.totals = objective().StepTotals(Texts(), info);
  PlainRunner runner;
  const at::Tensor metrics =
      objective().Compute(model(), Texts(), info, runner).metrics;
  if (tags == 0) {
    EXPECT_FALSE(metrics.defined());
    return;
  }
  ASSERT_TRUE(metrics.defined());
  EXPECT_EQ(metrics.sizes(), at::IntArrayRef({static_cast<int64_t>(tags), 2}));
  EXPECT_EQ(metrics.scalar_type(), at::kDouble);
  EXPECT_FALSE(metrics.requires_grad());
}

TEST_P(ObjectiveConformance, ForwardsRunInUnits) {
  CountingRunner runner;
  StepInfo info;
  info.training = true;
  const Batch batch = Texts();
  info.totals = objective().StepTotals(batch, info);
  EXPECT_EQ(info.totals.size(), static_cast<size_t>(objective().step_totals()));
  objective().Compute(model(), batch, info, runner);
  EXPECT_GT(runner.ran, 0) << "the given UnitRunner wasn't used";
}

TEST_P(ObjectiveConformance, SamplesContinueThePrompt) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> prompt = {65, 66, 67};
  SampleOptions options;
  options.greedy = true;
  options.max_new_tokens = 5;
  options.stop_at_eos = false;
  PlainRunner runner;
  const auto sample = [&] {
    return objective().Sample(model(), prompt, options, runner);
  };
  const auto text = sample();
  if (absl::IsUnimplemented(text.status())) GTEST_SKIP() << text.status();
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_GE(text->size(), prompt.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), text->begin()));
  EXPECT_LE(text->size(), prompt.size() + 5);
  for (const int64_t token : *text) {
    EXPECT_TRUE(token >= 0 && token < kStubVocabulary) << token;
  }
  EXPECT_EQ(*sample(), *text) << "greedy, and yet another text";
  options.stop = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(sample().status()))
      << "SampleOptions::stop isn't asked";
}

// ---- State and rollouts.

constexpr uint64_t kSeed = 7;

// Of two micro-batches of different sizes.
std::vector<Batch> MicroBatches() {
  const Batch texts = Texts();
  std::vector<Batch> batches(2);
  for (const auto& [name, tensor] : texts) {
    batches[0][name] = tensor.clone();
    batches[1][name] = tensor.narrow(0, 1, 1).clone();
  }
  return batches;
}

RolloutInfo InfoOf(int64_t step) {
  RolloutInfo info;
  info.seed = kSeed;
  info.step = step;
  return info;
}

std::vector<Batch> RolledOut(Objective& objective, Model& model,
                             const RolloutInfo& info, UnitRunner& runner) {
  std::vector<Batch> batches = MicroBatches();
  const at::NoGradGuard no_grad;
  const absl::Status status = objective.Rollout(model, &batches, info, runner);
  EXPECT_TRUE(status.ok()) << status;
  return batches;
}

// Trains steps `first` to `last` on a model that stays as it is; returns the
// sums of what is trained on, and the losses.
std::vector<double> Train(Objective& objective, Model& model, int64_t first,
                          int64_t last) {
  std::vector<double> numbers;
  PlainRunner runner;
  for (int64_t step = first; step <= last; ++step) {
    const std::vector<Batch> batches =
        objective.has_rollouts()
            ? RolledOut(objective, model, InfoOf(step), runner)
            : MicroBatches();
    for (const Batch& batch : batches) {
      StepInfo info;
      info.seed = kSeed;
      info.training = true;
      info.totals = objective.StepTotals(batch, info);
      for (const auto& [name, tensor] : batch) {
        numbers.push_back(tensor.to(at::kDouble).sum().item<double>());
      }
      numbers.push_back(
          objective.Compute(model, batch, info, runner).sum.item<double>());
    }
  }
  return numbers;
}

TEST_P(ObjectiveConformance, AnotherInstanceGoesOnFromItsState) {
  constexpr int64_t kSaved = 3, kLast = 6;
  Train(objective(), model(), 1, kSaved);
  const std::string state = objective().SaveState();
  EXPECT_EQ(objective().SaveState(), state) << "to save it changes it";
  const std::unique_ptr<Objective> other = New();
  if (!state.empty()) {
    const absl::Status restored = other->RestoreState(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }
  EXPECT_EQ(other->SaveState(), state);
  EXPECT_EQ(Train(*other, model(), kSaved + 1, kLast),
            Train(objective(), model(), kSaved + 1, kLast))
      << "SaveState lacks something";
  EXPECT_EQ(other->SaveState(), objective().SaveState());
}

TEST_P(ObjectiveConformance, AStateThatCannotBeReadIsAnError) {
  Train(objective(), model(), 1, 3);
  const std::string state = objective().SaveState();
  for (const std::string& garbage :
       {std::string("garbage"), std::string(37, '\xff')}) {
    EXPECT_FALSE(New()->RestoreState(garbage).ok());
  }
  // Some formats can't tell, but none may crash.
  for (size_t length = 1; length < state.size();
       length += 1 + state.size() / 16) {
    New()->RestoreState(state.substr(0, length)).IgnoreError();
  }
}

TEST_P(ObjectiveConformance, RolloutsKeepMicroBatchesAndRows) {
  if (!objective().has_rollouts()) GTEST_SKIP() << "no rollouts";
  PlainRunner runner;
  std::vector<Batch> before = MicroBatches();
  const std::vector<Batch> batches =
      RolledOut(objective(), model(), InfoOf(1), runner);
  ASSERT_EQ(batches.size(), before.size());
  StepInfo info;
  info.seed = kSeed;
  info.training = true;
  for (size_t i = 0; i < batches.size(); ++i) {
    SCOPED_TRACE(i);
    for (const auto& [name, tensor] : batches[i]) {
      ASSERT_TRUE(tensor.defined()) << name;
      EXPECT_FALSE(tensor.requires_grad()) << name;
      const auto was = before[i].find(name);
      if (was == before[i].end()) continue;
      EXPECT_EQ(tensor.size(0), was->second.size(0)) << name;
    }
    EXPECT_EQ(objective().CountTargets(batches[i], info),
              Compute(batches[i]).count);
  }
}

void ExpectSame(const std::vector<Batch>& got, const std::vector<Batch>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    for (const auto& [name, tensor] : want[i]) {
      const auto found = got[i].find(name);
      ASSERT_NE(found, got[i].end()) << name;
      EXPECT_TRUE(found->second.equal(tensor))
          << name << " of micro-batch " << i;
    }
  }
}

// A run that is started again, or compared, sees the same.
TEST_P(ObjectiveConformance, RolloutsAreAFunctionOfSeedAndStep) {
  if (!objective().has_rollouts()) GTEST_SKIP() << "no rollouts";
  PlainRunner runner;
  for (const int64_t step : {1, 2}) {
    const auto want = RolledOut(*New(), model(), InfoOf(step), runner);
    ExpectSame(RolledOut(*New(), model(), InfoOf(step), runner), want);
  }
}

// Forwards may contain collectives, in which the others would wait.
TEST_P(ObjectiveConformance, RolloutsGoOnUntilAllAreDone) {
  if (!objective().has_rollouts()) GTEST_SKIP() << "no rollouts";
  constexpr int kOthers = 5;  // rounds that the other ranks take longer
  CountingRunner runner;
  const auto want = RolledOut(*New(), model(), InfoOf(1), runner);
  RolloutInfo info = InfoOf(1);
  bool asked = false, all = false;
  int rounds = 0, ran = 0;
  info.all_done = [&](bool done) {
    EXPECT_FALSE(all) << "asks again after all were done";
    EXPECT_TRUE(rounds == 0 || runner.ran > ran) << "has run no forward since";
    ran = runner.ran;
    asked = true;
    if (done) ++rounds;
    all = rounds > kOthers;
    return all;
  };
  ExpectSame(RolledOut(*New(), model(), info, runner), want);
  EXPECT_TRUE(all || !asked) << "leaves before all are done";
}

TEST_P(ObjectiveConformance, ACurveOfItsOwnHasABoundAndAReason) {
  const absl::optional<OwnCurve> curve = objective().own_curve();
  if (!curve.has_value()) GTEST_SKIP() << "its curve is everyone's";
  EXPECT_TRUE(std::isfinite(curve->loss));
  EXPECT_GT(curve->loss, 0.0);
  EXPECT_FALSE(curve->why.empty());
  EXPECT_EQ(New()->own_curve()->loss, curve->loss);
}

}  // namespace

void ObjectiveConformance::SetUp() {
  PluginConformance::SetUp();
  if (HasFatalFailure()) return;
  absl::Status refused;
  for (const bool causal : {true, false}) {
    model_ = std::make_unique<StubModel>(causal);
    refused = objective().Check(*model_, StubReader());
    if (refused.ok()) return;
  }
  GTEST_SKIP() << "refuses the suite's models: " << refused.message();
}

LossSum ObjectiveConformance::Compute(const Batch& batch, bool training) const {
  StepInfo info;
  info.training = training;
  info.totals = objective().StepTotals(batch, info);
  PlainRunner runner;
  return objective().Compute(*model_, batch, info, runner);
}

}  // namespace conformance
}  // namespace capstan
