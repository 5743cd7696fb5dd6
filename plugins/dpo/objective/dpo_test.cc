// SPDX-License-Identifier: Apache-2.0
#include "plugins/dpo/objective/dpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/dpo/objective/fake_model.h"
#include "plugins/objective/common/pairs.h"
#include "plugins/sdk/dataset.h"

namespace capstan::dpo {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLength = 6;

struct Text {
  std::vector<int64_t> ids;
  int64_t prompt;
};

// Chosen and rejected.
const std::pair<Text, Text> kPairs[] = {
    {{{1, 2, 3, 4}, 2}, {{1, 2, 5}, 2}},
    {{{0, 6, 5, 4, 3, 2}, 1}, {{0, 1, 1, 2}, 1}},
    {{{3, 3, 1}, 2}, {{3, 3, 2, 6, 0}, 2}},
};

Batch BatchOf(const std::vector<int>& pairs) {
  const auto n = static_cast<int64_t>(pairs.size());
  Batch batch;
  batch[kInputIds] = at::full({2 * n, kLength}, 0, at::kLong);
  batch[kLabels] = at::full({2 * n, kLength}, kIgnoredTarget, at::kLong);
  batch[kTokenCounts] = at::full({2 * n}, 0, at::kLong);
  batch[kPairKeys] = at::full({n}, 0, at::kLong);
  batch[kSamplePosition] = at::full({n}, 0, at::kLong);
  for (int64_t i = 0; i < n; ++i) {
    batch[kPairKeys][i] = 1000 + pairs[i];
    batch[kSamplePosition][i] = pairs[i];
    for (const bool rejected : {false, true}) {
      const auto& pair = kPairs[pairs[i]];
      const Text& text = rejected ? pair.second : pair.first;
      const int64_t row = rejected ? n + i : i;
      const auto count = static_cast<int64_t>(text.ids.size());
      batch[kTokenCounts][row] = count;
      for (int64_t t = 0; t < count; ++t) {
        batch[kInputIds][row][t] = text.ids[t];
        if (t >= text.prompt) batch[kLabels][row][t] = text.ids[t];
      }
    }
  }
  return batch;
}

class Data final : public DatasetReader {
 public:
  explicit Data(int64_t longest, bool pairs = true, bool labelled = false)
      : longest_(longest), pairs_(pairs), labelled_(labelled) {}
  int64_t size() const override { return 3; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch* batch) const override {
    if (pairs_) (*batch)[kPairKeys] = at::zeros({1}, at::kLong);
    if (labelled_) (*batch)[kDesirable] = at::ones({1}, at::kLong);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  int64_t max_sequence_length() const override { return longest_; }

 private:
  const int64_t longest_;
  const bool pairs_, labelled_;
};

std::unique_ptr<Dpo> Make(const Config& config) {
  auto made = Dpo::Create(config);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

Config Of(Loss loss) {
  Config config;
  config.set_loss(loss);
  config.set_beta(0.3);
  if (loss == SIGMOID || loss == SIMPO) config.set_label_smoothing(0.1);
  return config;
}

StepInfo Training() {
  StepInfo info;
  info.training = true;
  return info;
}

// -log p of a text's completion by the fake model's table.
double Loss1(const at::Tensor& table, const Text& text, int64_t from) {
  double sum = 0.0;
  for (size_t t = from; t < text.ids.size(); ++t) {
    const at::Tensor row = table[text.ids[t - 1]];
    sum -= (row[text.ids[t]] - row.logsumexp(0)).item<double>();
  }
  return sum;
}

// ---- What is computed.

TEST(DpoTest, TheReferenceIsTheModelWithoutItsAdapter) {
  FakeModel model(/*adapter=*/true);
  const std::unique_ptr<Dpo> dpo = Make(Of(SIGMOID));
  ASSERT_TRUE(dpo->Check(model, Data(12)).ok());
  PlainRunner runner;
  const LossSum loss = dpo->Compute(model, BatchOf({0, 1}), Training(), runner);
  EXPECT_EQ(loss.count, 2);
  EXPECT_EQ(loss.tokens, 4 + 6 + 3 + 4);
  EXPECT_EQ(loss.padding, 24 - 17);
  EXPECT_EQ(loss.trained, 2 + 5 + 1 + 3);
  const at::Tensor adapted = (model.table() + model.trained()).detach();
  double expected = 0.0, chosen_reward = 0.0, accurate = 0.0;
  for (const int i : {0, 1}) {
    const auto& [chosen, rejected] = kPairs[i];
    const double c = Loss1(model.table(), chosen, chosen.prompt) -
                     Loss1(adapted, chosen, chosen.prompt);
    const double r = Loss1(model.table(), rejected, rejected.prompt) -
                     Loss1(adapted, rejected, rejected.prompt);
    const double x = 0.3 * (c - r);
    expected += 0.9 * std::log1p(std::exp(-x)) + 0.1 * std::log1p(std::exp(x));
    chosen_reward += 0.3 * c;
    accurate += c > r ? 1.0 : 0.0;
  }
  EXPECT_NEAR(loss.sum.item<double>(), expected, 1e-6);
  ASSERT_EQ(loss.metrics.sizes(), at::IntArrayRef({6, 2}));
  ASSERT_EQ(dpo->metrics().size(), 6u);
  EXPECT_EQ(dpo->metrics()[2].eval, "eval/rewards/accuracies");
  EXPECT_NEAR(loss.metrics[0][0].item<double>(), chosen_reward, 1e-6);
  EXPECT_EQ(loss.metrics[2][0].item<double>(), accurate);
  EXPECT_EQ(loss.metrics[2][1].item<double>(), 2.0);
  // Each text has its own dropout, and the reference none.
  ASSERT_EQ(model.inputs.size(), 2u);
  EXPECT_FALSE(model.inputs[0].sample_positions.defined());
  EXPECT_TRUE(model.inputs[1].sample_positions.equal(
      at::tensor(std::vector<int64_t>{0, 2, 1, 3})));
}

TEST(DpoTest, OrpoHasTheMeanOverTheChosenTextsTokens) {
  FakeModel model;
  const std::unique_ptr<Dpo> dpo = Make(Of(ORPO));
  PlainRunner runner;
  const Batch batch = BatchOf({0, 1, 2});
  StepInfo info = Training();
  info.totals = dpo->StepTotals(batch, info);
  EXPECT_THAT(info.totals, ElementsAre(3 + 5 + 2, 3));
  const LossSum loss = dpo->Compute(model, batch, info, runner);
  double nll = 0.0, odds = 0.0;
  const auto log_odds = [&](const Text& text) {
    const double mean = -Loss1(model.table(), text, text.prompt) /
                        static_cast<double>(text.ids.size() - text.prompt);
    return mean - std::log1p(-std::exp(mean));
  };
  for (const auto& [chosen, rejected] : kPairs) {
    nll += Loss1(model.table(), chosen, 1);
    odds += 0.3 * std::log1p(std::exp(log_odds(rejected) - log_odds(chosen)));
  }
  EXPECT_NEAR(loss.sum.item<double>(), odds + 3.0 * nll / 10.0, 1e-6);
  ASSERT_EQ(dpo->metrics().back().train, "train/nll_loss");
  EXPECT_NEAR(loss.metrics[8][0].item<double>(), nll, 1e-6);
  EXPECT_EQ(loss.metrics[8][1].item<double>(), 10.0);
}

// ---- Gradients.

class GradientTest : public ::testing::TestWithParam<Loss> {};

// Answers with labels, whose second texts are mismatched.
Batch AnswersOf(const std::vector<int>& pairs) {
  Batch batch = BatchOf(pairs);
  std::vector<int64_t> labels;
  for (const int pair : pairs) labels.push_back(pair == 1 ? 0 : 1);
  batch["desirable"] = at::tensor(labels, at::kLong);
  return batch;
}

// Rolled out as one step.
std::vector<Batch> RolledOut(Dpo& dpo, FakeModel& model,
                             std::vector<Batch> batches) {
  const at::NoGradGuard no_grad;
  PlainRunner runner;
  EXPECT_TRUE(dpo.has_rollouts());
  EXPECT_TRUE(dpo.Rollout(model, &batches, {}, runner).ok());
  return batches;
}

// However the step's pairs are cut into micro-batches.
TEST_P(GradientTest, IsThatOfFiniteDifferences) {
  FakeModel model(/*adapter=*/true);
  const std::unique_ptr<Dpo> dpo = Make(Of(GetParam()));
  PlainRunner runner;
  StepInfo info = Training();
  const auto batch_of = [&](const std::vector<int>& pairs) {
    return IsOfAnswers(GetParam()) ? AnswersOf(pairs) : BatchOf(pairs);
  };
  if (dpo->step_totals() > 0) {
    std::vector<Batch> whole = {batch_of({0, 1, 2})};
    if (dpo->has_rollouts()) whole = RolledOut(*dpo, model, std::move(whole));
    info.totals = dpo->StepTotals(whole[0], info);
  }
  const std::vector<std::vector<int>> cuts[] = {{{0, 1, 2}}, {{2}, {0, 1}}};
  const auto sum = [&](const std::vector<std::vector<int>>& cut) {
    at::Tensor total;
    for (const std::vector<int>& part : cut) {
      const at::Tensor one =
          dpo->Compute(model, batch_of(part), info, runner).sum;
      total = total.defined() ? total + one : one;
    }
    return total;
  };
  at::Tensor& table = model.trained();
  std::vector<at::Tensor> gradients;
  for (const auto& cut : cuts) {
    table.mutable_grad() = at::Tensor();
    sum(cut).backward();
    gradients.push_back(table.grad().clone());
  }
  EXPECT_LT((gradients[0] - gradients[1]).abs().max().item<double>(), 1e-6);
  const at::NoGradGuard no_gradients;
  constexpr double kStep = 1e-4;
  double most = 0.0;
  for (int64_t i = 0; i < table.numel(); ++i) {
    double* const value = table.mutable_data_ptr<double>() + i;
    const double before = *value;
    *value = before + kStep;
    const double above = sum(cuts[0]).item<double>();
    *value = before - kStep;
    const double below = sum(cuts[0]).item<double>();
    *value = before;
    const double expected = (above - below) / (2 * kStep);
    most = std::max(most, std::abs(expected));
    EXPECT_NEAR(gradients[0].flatten()[i].item<double>(), expected, 2e-5) << i;
  }
  EXPECT_GT(most, 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Losses, GradientTest,
                         ::testing::Values(SIGMOID, IPO, ORPO, SIMPO, KTO,
                                           APO_ZERO_UNPAIRED));

// Counts units, and runs their bodies again in backward as activation
// checkpointing does.
class CountingRunner final : public UnitRunner {
 public:
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override {
    ++runs[unit];
    bodies.push_back([body, input] { return body(input); });
    return body(input);
  }
  std::map<int, int> runs;
  std::vector<std::function<at::Tensor()>> bodies;
};

TEST(DpoTest, EachUnitRunsOnceForBothForwards) {
  FakeModel model(/*adapter=*/true);
  const std::unique_ptr<Dpo> dpo = Make(Of(IPO));
  CountingRunner runner;
  const LossSum loss = dpo->Compute(model, BatchOf({1}), Training(), runner);
  EXPECT_EQ(runner.runs, (std::map<int, int>{{0, 1}, {1, 1}}));
  const at::Tensor metrics = loss.metrics.clone();
  // A body outlives Compute, and its second run has no effect but its result.
  for (const auto& body : runner.bodies) EXPECT_TRUE(body().requires_grad());
  EXPECT_TRUE(loss.metrics.equal(metrics));
}

// ---- The reference in a file.

std::string NewPath() {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "/" + test->name();
  std::filesystem::remove_all(folder);
  return folder + "/pairs.reference";
}

// As an evaluation on two ranks does, of which the second repeats the last
// batch.
void WriteFile(const std::string& path, FakeModel& model) {
  const at::NoGradGuard no_gradients;
  Config config = Of(SIGMOID);
  config.set_reference(path);
  config.set_write_reference(true);
  PlainRunner runner;
  const std::vector<std::vector<int>> batches[] = {{{0}, {2}}, {{1}, {2}}};
  std::vector<double> sums;
  std::vector<std::unique_ptr<Dpo>> ranks;
  MeasureInfo info;
  for (int rank : {0, 1}) {
    ranks.push_back(Make(config));
    ASSERT_TRUE(ranks[rank]->Check(model, Data(12)).ok());
    for (const std::vector<int>& batch : batches[rank]) {
      const LossSum loss =
          ranks[rank]->Compute(model, BatchOf(batch), {}, runner);
      EXPECT_EQ(loss.count, 1);
    }
    auto mine = ranks[rank]->Measure(model, Data(12), info, runner);
    ASSERT_TRUE(mine.ok()) << mine.status();
    sums.resize(mine->size());
    for (size_t i = 0; i < mine->size(); ++i) sums[i] += (*mine)[i];
  }
  const Measurement measured = ranks[0]->Summarize(sums, info);
  ASSERT_EQ(measured.scalars.size(), 1u);
  EXPECT_EQ(measured.scalars[0].second, 3.0);
}

TEST(DpoTest, KtosTermIsTheStepsHoweverItIsDivided) {
  FakeModel model(/*adapter=*/true);
  const std::unique_ptr<Dpo> dpo = Make(Of(KTO));
  PlainRunner runner;
  // The loss, and the sum and divisor of the last metric, z.
  const auto step = [&](const std::vector<Batch>& batches) {
    StepInfo info = Training();
    info.totals = {0.0, 0.0};
    for (const Batch& batch : batches) {
      const std::vector<double> own = dpo->StepTotals(batch, info);
      for (const int i : {0, 1}) info.totals[i] += own[i];
    }
    std::vector<double> sums = {0.0, 0.0, 0.0};
    for (const Batch& batch : batches) {
      const LossSum loss = dpo->Compute(model, batch, info, runner);
      EXPECT_TRUE(loss.sum.requires_grad());
      sums[0] += loss.sum.item<double>();
      sums[1] += loss.metrics[4][0].item<double>();
      sums[2] += loss.metrics[4][1].item<double>();
    }
    return sums;
  };
  const std::vector<double> whole =
      step(RolledOut(*dpo, model, {AnswersOf({0, 1, 2})}));
  const std::vector<double> divided =
      step(RolledOut(*dpo, model, {AnswersOf({0}), AnswersOf({1, 2})}));
  for (const int i : {0, 1, 2}) EXPECT_NEAR(whole[i], divided[i], 1e-5) << i;
  // By hand.
  const at::Tensor adapted = (model.table() + model.trained()).detach();
  const auto ratio = [&](const Text& text) {
    return Loss1(model.table(), text, text.prompt) -
           Loss1(adapted, text, text.prompt);
  };
  double z = 0.0, sum = 0.0;
  for (const auto& [answer, mismatched] : kPairs) z += ratio(mismatched) / 3.0;
  z = std::max(z, 0.0);
  for (const int i : {0, 1, 2}) {
    const double x = 0.3 * (ratio(kPairs[i].first) - z) * (i == 1 ? -1 : 1);
    sum += 1.0 / (1.0 + std::exp(x));
  }
  EXPECT_NEAR(whole[0], sum, 1e-5);
  EXPECT_NEAR(whole[1], 3.0 * z, 1e-5);
}

TEST(DpoTest, AnswersAndPairsAreToldApart) {
  FakeModel model(/*adapter=*/true);
  PlainRunner runner;
  EXPECT_THROW(Make(Of(KTO))->Compute(model, BatchOf({0}), Training(), runner),
               std::invalid_argument);
  EXPECT_THROW(
      Make(Of(SIGMOID))->Compute(model, AnswersOf({0}), Training(), runner),
      std::invalid_argument);
  EXPECT_FALSE(Make(Of(APO_ZERO_UNPAIRED))->has_rollouts());
  Config config = Of(SIGMOID);
  config.set_desirable_weight(2.0);
  EXPECT_THAT(std::string(Dpo::Create(config).status().message()),
              HasSubstr("KTO and APO_ZERO_UNPAIRED"));
}

TEST(DpoTest, AFileGivesWhatTheModelAtTheStartDid) {
  const std::string path = NewPath();
  FakeModel model;
  WriteFile(path, model);
  Config config = Of(SIGMOID);
  config.set_reference(path);
  const std::unique_ptr<Dpo> dpo = Make(config);
  ASSERT_TRUE(dpo->Check(model, Data(12)).ok());
  {
    const at::NoGradGuard no_gradients;
    model.trained().mul_(1.5);  // trained since
  }
  PlainRunner runner;
  const LossSum loss = dpo->Compute(model, BatchOf({2, 0}), Training(), runner);
  FakeModel start;
  double expected = 0.0;
  for (const int i : {2, 0}) {
    const Text& text = kPairs[i].first;
    expected += 0.3 * (Loss1(start.table(), text, text.prompt) -
                       Loss1(model.table().detach(), text, text.prompt));
  }
  EXPECT_NEAR(loss.metrics[0][0].item<double>(), expected, 1e-5);
}

// What Compute throws.
std::string ErrorOf(Dpo& dpo, FakeModel& model, const Batch& batch) {
  PlainRunner runner;
  try {
    dpo.Compute(model, batch, Training(), runner);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(DpoTest, AStaleFileIsRefused) {
  const std::string path = NewPath();
  FakeModel model;
  WriteFile(path, model);
  Config config = Of(IPO);
  config.set_reference(path);
  const std::unique_ptr<Dpo> dpo = Make(config);
  ASSERT_TRUE(dpo->Check(model, Data(12)).ok());
  Batch other = BatchOf({0});
  other[kPairKeys].fill_(5);
  EXPECT_THAT(ErrorOf(*dpo, model, other),
              AllOf(HasSubstr("has no log-probabilities of pair 0"),
                    HasSubstr("or the date if the template shows it")));
  EXPECT_EQ(ErrorOf(*dpo, model, BatchOf({0})), "");
  const std::unique_ptr<Dpo> again = Make(config);
  ASSERT_TRUE(again->Check(model, Data(12)).ok());
  model.initial_shift = 0.01;
  EXPECT_THAT(ErrorOf(*again, model, BatchOf({0})),
              HasSubstr("of another model than the one that this run starts"));
}

TEST(DpoTest, WithoutAReferenceItSaysWhatToRun) {
  FakeModel model, adapted(/*adapter=*/true);
  Config config = Of(SIGMOID);
  const absl::Status none = Make(config)->Check(model, Data(12));
  EXPECT_EQ(FieldOf(none), "reference");
  EXPECT_THAT(none.message(), HasSubstr("`trainer dpo-reference`"));
  EXPECT_TRUE(Make(config)->Check(adapted, Data(12)).ok());
  EXPECT_TRUE(Make(Of(SIMPO))->Check(model, Data(12)).ok());
  config.set_reference(NewPath());
  const absl::Status missing = Make(config)->Check(model, Data(12));
  EXPECT_EQ(FieldOf(missing), "reference");
  EXPECT_THAT(missing.message(), HasSubstr("pairs.reference doesn't exist"));
  EXPECT_THAT(missing.message(), HasSubstr("trainer dpo-reference"));
}

// ---- Mistakes.

TEST(DpoTest, WrongSettings) {
  const auto field = [](const std::function<void(Config*)>& set) {
    Config config;
    set(&config);
    return FieldOf(Dpo::Create(config).status()).value_or("");
  };
  EXPECT_EQ(field([](Config* c) { c->set_beta(0); }), "beta");
  EXPECT_EQ(field([](Config* c) { c->set_label_smoothing(0.5); }),
            "label_smoothing");
  EXPECT_EQ(field([](Config* c) {
              c->set_loss(IPO);
              c->set_label_smoothing(0.1);
            }),
            "label_smoothing");
  EXPECT_EQ(field([](Config* c) { c->set_simpo_gamma(1); }), "simpo_gamma");
  EXPECT_EQ(field([](Config* c) {
              c->set_loss(ORPO);
              c->set_reference("a");
            }),
            "reference");
  EXPECT_EQ(field([](Config* c) { c->set_write_reference(true); }),
            "reference");
  EXPECT_EQ(field([](Config* c) { c->set_top_p(2); }), "top_p");
  EXPECT_EQ(field([](Config*) {}), "");
}

TEST(DpoTest, WhatDoesNotFit) {
  FakeModel model;
  model.positions = 5;
  EXPECT_THAT(Make(Of(ORPO))->Check(model, Data(12)).message(),
              HasSubstr("texts of 6 tokens"));
  model.positions = 6;
  EXPECT_THAT(Make(Of(ORPO))->Check(model, Data(12, false)).message(),
              HasSubstr("single texts: this objective needs kind: PREFERENCE"));
  EXPECT_THAT(Make(Of(ORPO))->Check(model, Data(12, true, true)).message(),
              HasSubstr("answers with labels"));
  EXPECT_THAT(Make(Of(KTO))->Check(model, Data(12)).message(),
              HasSubstr("need kind: UNPAIRED"));
  const std::unique_ptr<Dpo> dpo = Make(Of(ORPO));
  Batch single = BatchOf({0});
  single.erase(kPairKeys);
  EXPECT_THAT(ErrorOf(*dpo, model, single), HasSubstr("no \"pair_keys\""));
  Batch odd = BatchOf({0, 1});
  odd[kPairKeys] = odd[kPairKeys].narrow(0, 0, 1);
  EXPECT_THAT(ErrorOf(*dpo, model, odd), HasSubstr("not two rows"));
}

}  // namespace
}  // namespace capstan::dpo
