// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/objective/algorithm_distillation.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/objective/fake_history_model.h"

namespace capstan::algorithm_distillation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeHistories final : public DatasetReader, public HistorySource {
 public:
  explicit FakeHistories(bool compressed) {
    form.compressed = compressed;
    form.length = 16;
    form.environment = std::make_shared<darkroom::Darkroom>(
        darkroom::Variant::kGoals, darkroom::Room());
  }
  int64_t size() const override { return 1; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  HistoryForm history_form() const override { return form; }
  std::vector<int> tasks() const override { return {38, 51, 62}; }

  HistoryForm form;
};

class OtherData final : public DatasetReader {
 public:
  int64_t size() const override { return 1; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
};

std::unique_ptr<AlgorithmDistillation> Made(const Config& config = {}) {
  auto objective = AlgorithmDistillation::Create(config);
  EXPECT_TRUE(objective.ok()) << objective.status();
  return *std::move(objective);
}

// Rows 0, 1, ..: a query in cell (row, 0) each.
Batch Rows(const std::vector<int64_t>& actions,
           const std::vector<int64_t>& types = {}) {
  const int64_t count = static_cast<int64_t>(actions.size());
  Batch batch;
  batch["transitions"] = at::zeros({count, 1, 6}, at::kByte);
  batch["transitions"].select(2, 0).copy_(at::arange(count).unsqueeze(1));
  batch["kinds"] = at::full({count, 1}, 3, at::kByte);
  batch["lengths"] = at::full({count}, 1, at::kLong);
  batch["action"] = at::tensor(actions, at::kLong);
  batch["sample_position"] = at::arange(count);
  if (!types.empty()) batch["token_type"] = at::tensor(types, at::kLong);
  return batch;
}

Batch Slice(const Batch& batch, int64_t begin, int64_t end) {
  Batch part;
  for (const auto& [name, tensor] : batch) {
    part[name] = tensor.narrow(0, begin, end - begin);
  }
  return part;
}

LossSum Compute(AlgorithmDistillation* objective, FakeHistoryModel* model,
                const Batch& batch, const std::vector<double>& totals) {
  StepInfo info;
  info.totals = totals;
  PlainRunner runner;
  return objective->Compute(*model, batch, info, runner);
}

// -log softmax(logits)[target]
double Surprise(const float* logits, int count, int target) {
  double total = 0.0;
  for (int i = 0; i < count; ++i) total += std::exp(logits[i]);
  return std::log(total) - logits[target];
}

TEST(AlgorithmDistillationTest, ABatchWithoutHistoriesIsAnError) {
  const auto made = AlgorithmDistillation::Create(Config());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THROW((*made)->CountTargets({}, {}), std::invalid_argument);
  EXPECT_THROW((*made)->StepTotals({}, {}), std::invalid_argument);
}

// On a GPU, reading the actions would wait for it: their copy is counted.
TEST(AlgorithmDistillationTest, TotalsAreCountedOnTheHost) {
  Batch batch = Rows({3, -100, 0, 1}, {0, 2, 0, 0});
  batch[HostCopyName("action")] = Rows({3, -100, -100, 1}, {}).at("action");
  EXPECT_THAT(Made()->StepTotals(batch, {}), ElementsAre(4.0, 2.0));
}

TEST(AlgorithmDistillationTest, TheLossIsTwoMeans) {
  const auto objective = Made();
  FakeHistoryModel model(true);
  const std::vector<int64_t> actions = {3, -100, 0, 1};
  const std::vector<int64_t> types = {0, 2, 0, 0};
  const Batch batch = Rows(actions, types);
  const std::vector<double> totals = objective->StepTotals(batch, {});
  EXPECT_THAT(totals, ElementsAre(4.0, 3.0));
  EXPECT_EQ(objective->CountTargets(batch, {}), 4);

  HistoryInput input;
  input.transitions = batch.at("transitions");
  input.kinds = batch.at("kinds");
  input.lengths = batch.at("lengths");
  PlainRunner runner;
  const at::Tensor logits = model.LastLogits(input, runner);
  double action = 0.0, type = 0.0;
  for (int i = 0; i < 4; ++i) {
    const float* row = logits.const_data_ptr<float>() + 8 * i;
    if (actions[i] >= 0) action += Surprise(row, 5, actions[i]) / 3;
    type += Surprise(row + 5, 3, types[i]) / 4;
  }
  const LossSum loss = Compute(objective.get(), &model, batch, totals);
  EXPECT_EQ(loss.count, 4);
  EXPECT_EQ(loss.tokens, 4);
  EXPECT_EQ(objective->unit(), "samples");
  EXPECT_NEAR(loss.sum.item<double>() / loss.count, action + type, 1e-6);
  // In the order of metrics(): sums and their divisors.
  ASSERT_EQ(loss.metrics.sizes(), at::IntArrayRef({4, 2}));
  ASSERT_EQ(objective->metrics().size(), 4u);
  const at::Tensor means =
      loss.metrics.select(1, 0).div(loss.metrics.select(1, 1));
  EXPECT_NEAR(means[0].item<double>(), action, 1e-6);
  EXPECT_NEAR(means[2].item<double>(), type, 1e-6);
  EXPECT_EQ(means[3].item<double>(), 0.75);  // the fake says "none" always
}

// Parts of a step, wherever they are computed, add up to the whole step, unlike
// a mean of the parts' means.
TEST(AlgorithmDistillationTest, MicroBatchesAreOneBatch) {
  const auto objective = Made();
  FakeHistoryModel model(true);
  const Batch batch =
      Rows({3, -100, 0, 1, -100, -100, 2, 4, 0}, {0, 2, 0, 0, 2, 2, 0, 0, 0});
  const std::vector<double> totals = objective->StepTotals(batch, {});
  const LossSum whole = Compute(objective.get(), &model, batch, totals);
  double sum = 0.0;
  int64_t count = 0;
  at::Tensor metrics = at::zeros({4, 2}, at::kDouble);
  for (int64_t begin = 0; begin < 9; begin += 3) {
    const Batch part = Slice(batch, begin, begin + 3);
    const LossSum loss = Compute(objective.get(), &model, part, totals);
    sum += loss.sum.item<double>();
    count += loss.count;
    metrics.add_(loss.metrics);
  }
  EXPECT_EQ(count, whole.count);
  EXPECT_NEAR(sum, whole.sum.item<double>(), 1e-5);
  EXPECT_TRUE(metrics.allclose(whole.metrics));
}

TEST(AlgorithmDistillationTest, PlainHistoriesHaveActionsOnly) {
  const auto objective = Made();
  FakeHistoryModel model(false);
  const Batch batch = Rows({3, 1});
  const LossSum loss = Compute(objective.get(), &model, batch, {2.0, 2.0});
  EXPECT_EQ(loss.count, 2);
  EXPECT_NEAR(loss.sum.item<double>(), loss.metrics[0][0].item<double>(), 1e-6);
  // Nothing to divide by: no number.
  EXPECT_EQ(loss.metrics[2][1].item<double>(), 0.0);
}

TEST(AlgorithmDistillationTest, NoActionAtAllIsLegal) {
  const auto objective = Made();
  FakeHistoryModel model(true);
  const Batch batch = Rows({-100, -100}, {2, 2});
  const LossSum loss = Compute(objective.get(), &model, batch, {2.0, 0.0});
  EXPECT_TRUE(std::isfinite(loss.sum.item<double>()));
  EXPECT_EQ(loss.count, 2);
}

TEST(AlgorithmDistillationTest, SamplePositionsAreForTraining) {
  const auto objective = Made();
  FakeHistoryModel model(false);
  const Batch batch = Rows({3, 1});
  StepInfo info;
  info.totals = {2.0, 2.0};
  PlainRunner runner;
  objective->Compute(model, batch, info, runner);
  EXPECT_FALSE(model.seen_samples.defined());
  info.training = true;
  objective->Compute(model, batch, info, runner);
  EXPECT_TRUE(model.seen_samples.equal(batch.at("sample_position")));
}

// The tasks are distributed over the ranks, each rank calls the model equally
// often, and the result depends on neither.
TEST(AlgorithmDistillationTest, RanksMeasureTogetherWhatOneMeasures) {
  Config config;
  config.mutable_evaluation()->set_episodes(2);
  config.mutable_evaluation()->set_streams(2);
  const auto objective = Made(config);
  const FakeHistories data(true);
  PlainRunner runner;
  const auto measure = [&](int world_size) {
    std::vector<double> sums(3 * 2 * 2, 0.0);
    std::vector<int> calls;
    for (int rank = 0; rank < world_size; ++rank) {
      FakeHistoryModel model(true);
      MeasureInfo info;
      info.seed = 3;
      info.rank = rank;
      info.world_size = world_size;
      const auto part = objective->Measure(model, data, info, runner);
      EXPECT_TRUE(part.ok()) << part.status();
      EXPECT_EQ(part->size(), sums.size());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += (*part)[i];
      calls.push_back(model.calls);
    }
    EXPECT_EQ(calls, std::vector<int>(world_size, 2 * 20));
    return sums;
  };
  const std::vector<double> one = measure(1);
  EXPECT_GT(std::accumulate(one.begin(), one.end(), 0.0), 0.0);
  for (const int world_size : {2, 4, 5, 9}) EXPECT_EQ(measure(world_size), one);
}

TEST(AlgorithmDistillationTest, TheLastEvaluationIsLonger) {
  Config config;
  config.mutable_evaluation()->set_episodes(0);
  config.mutable_evaluation()->set_final_episodes(3);
  config.mutable_evaluation()->add_tasks(38);
  const auto objective = Made(config);
  const FakeHistories data(false);
  FakeHistoryModel model(false);
  PlainRunner runner;
  MeasureInfo info;
  EXPECT_TRUE(objective->Measure(model, data, info, runner)->empty());
  EXPECT_TRUE(objective->Summarize({}, info).scalars.empty());
  info.last = true;
  EXPECT_EQ(objective->Measure(model, data, info, runner)->size(), 3u);
}

TEST(AlgorithmDistillationTest, ASummaryHasCurveAndArray) {
  Config config;
  config.mutable_evaluation()->set_episodes(10);
  config.mutable_evaluation()->set_streams(2);
  const auto objective = Made(config);
  // Two tasks, two streams each: task + stream + episode.
  std::vector<double> sums;
  for (int task = 0; task < 2; ++task) {
    for (int stream = 0; stream < 2; ++stream) {
      for (int episode = 0; episode < 10; ++episode) {
        sums.push_back(task + stream + episode);
      }
    }
  }
  const Measurement measured = objective->Summarize(sums, {});
  ASSERT_EQ(measured.curves.size(), 1u);
  EXPECT_EQ(measured.curves[0].name, "return");
  EXPECT_EQ(measured.curves[0].values.size(), 10u);
  EXPECT_DOUBLE_EQ(measured.curves[0].values[4], 5.0);
  ASSERT_EQ(measured.arrays.size(), 1u);
  EXPECT_EQ(measured.arrays[0].name, "eval_result");
  EXPECT_THAT(measured.arrays[0].shape, ElementsAre(2, 10));
  EXPECT_DOUBLE_EQ(measured.arrays[0].values[13], 4.5);
  ASSERT_EQ(measured.scalars.size(), 4u);
  EXPECT_EQ(measured.scalars[0].first, "eval/mean_return");
  EXPECT_DOUBLE_EQ(measured.scalars[0].second, 5.5);
  EXPECT_EQ(measured.scalars[2].first, "eval/mean_return_last_tenth");
  EXPECT_DOUBLE_EQ(measured.scalars[2].second, 10.0);
}

TEST(AlgorithmDistillationTest, CheckNamesWhatDoesNotFit) {
  const auto objective = Made();
  const auto expect = [&](Model& model, const DatasetReader& data,
                          const std::string& words) {
    const absl::Status status = objective->Check(model, data);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  FakeHistoryModel plain(false), compressed(true);
  FakeHistories in_order(false), regions(true);
  EXPECT_TRUE(objective->Check(plain, in_order).ok());
  EXPECT_TRUE(objective->Check(compressed, regions).ok());
  expect(plain, regions, "the model reads plain ones");
  expect(compressed, in_order, "the data has plain ones");
  expect(plain, OtherData(), "capstan.ad_history");
  plain.spec.max_length = 15;
  expect(plain, in_order, "samples of 16 tokens, the model's n_transit is 15");
  compressed.spec.bounds = {9, 8};
  expect(compressed, regions,
         "are below 9 and 9, those of the model's below 9 and 8");
  compressed.spec.bounds = {9};
  expect(compressed, regions, "of the model's below 9:");
  compressed.spec.bounds = {9, 9};
  compressed.spec.actions = 4;
  expect(compressed, regions, "5 actions, the model 4");
}

TEST(AlgorithmDistillationTest, BadConfigNamesItsField) {
  Config config;
  config.set_label_smoothing(1.0);
  EXPECT_EQ(FieldOf(AlgorithmDistillation::Create(config).status()),
            "label_smoothing");
  config = Config();
  config.mutable_evaluation()->set_episodes(-1);
  EXPECT_EQ(FieldOf(AlgorithmDistillation::Create(config).status()),
            "evaluation.episodes");
  config = Config();
  config.mutable_evaluation()->add_tasks(81);
  FakeHistoryModel model(false);
  const absl::Status status = Made(config)->Check(model, FakeHistories(false));
  EXPECT_EQ(FieldOf(status), "evaluation.tasks");
  EXPECT_THAT(std::string(status.message()), HasSubstr("0 to 80"));
}

}  // namespace
}  // namespace capstan::algorithm_distillation
