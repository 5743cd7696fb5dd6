// SPDX-License-Identifier: Apache-2.0
//
// The host reads the step's sums a step late, as on a GPU, and nothing changes.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/csrc/autograd/variable.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"
#include "plugins/sdk/plugin_for_test.h"
#include "strategies/single/single.pb.h"
#include "tests/conformance/toy_model.h"
#include "tests/conformance/toy_training.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/without_times.h"
#include "trainer/session/step_sums.h"
#include "trainer/session/train.h"

namespace capstan {
namespace {

enum class ReadSums { kBeforeUpdate, kDeferred };

ReadSums read_sums = ReadSums::kBeforeUpdate;

}  // namespace

// Takes the core's place (testing/faults/interposed.cc says how).
bool DefersSums(at::Device) { return read_sums == ReadSums::kDeferred; }

namespace {

using conformance::ToyBatch;
using conformance::ToyFault;
using conformance::ToyModel;

constexpr int64_t kBatch = 4;

// Samples in order. Their numbers go along, and decide what goes wrong.
class ToyData final : public DatasetReader {
 public:
  int64_t size() const override { return 4000; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    const ToyBatch toy = conformance::ToySamples(
        indices[0], static_cast<int64_t>(indices.size()));
    *batch = {{"ids", toy.ids},
              {"targets", toy.targets},
              {"rare", toy.rare},
              {"first", at::full({}, indices[0], at::kLong)}};
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
};

class ToyObjective final : public Objective {
 public:
  ToyObjective(std::set<int64_t> bad_steps, std::set<int64_t> spikes,
               int64_t stop_step)
      : bad_steps_(std::move(bad_steps)),
        spikes_(std::move(spikes)),
        stop_step_(stop_step) {}

  absl::Status Check(Model&, const DatasetReader&) const override {
    return absl::OkStatus();
  }
  int64_t CountTargets(const Batch& batch, const StepInfo&) const override {
    return (batch.at("targets") != -100).sum().item<int64_t>();
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override {
    const int64_t step = batch.at("first").item<int64_t>() / kBatch + 1;
    const bool bad = at::GradMode::is_enabled() && bad_steps_.count(step) > 0;
    if (at::GradMode::is_enabled() && step == stop_step_) AdoptStop(SIGTERM);
    ToyBatch toy;
    toy.ids = batch.at("ids");
    toy.targets = batch.at("targets");
    toy.rare = batch.at("rare");
    toy.any_rare = true;
    LossSum loss;
    loss.sum = static_cast<ToyModel&>(model).LossSum(
        toy, runner, bad ? ToyFault::kInfiniteGradient : ToyFault::kNone);
    if (info.training && spikes_.count(step) > 0) loss.sum = loss.sum * 1e4;
    loss.count = CountTargets(batch, info);
    loss.tokens = toy.ids.numel();
    return loss;
  }
  absl::StatusOr<std::vector<int64_t>> Sample(Model&,
                                              const std::vector<int64_t>&,
                                              const SampleOptions&,
                                              UnitRunner&) override {
    return absl::UnimplementedError("");
  }

 private:
  const std::set<int64_t> bad_steps_;
  const std::set<int64_t> spikes_;
  const int64_t stop_step_;
};

class ToyPrecision final : public Precision {
 public:
  explicit ToyPrecision(const absl::optional<LossScaling>& scaling) {
    policy_.loss_scaling = scaling;
  }
  PrecisionPolicy policy() const override { return policy_; }

 private:
  PrecisionPolicy policy_;
};

// Momentum whose step depends on the number of updates, as Adam's does.
class ToyOptimizer final : public Optimizer {
 public:
  // overflow_at: the update that makes the weights infinite; 0: none.
  explicit ToyOptimizer(int64_t overflow_at) : overflow_at_(overflow_at) {}
  double learning_rate() const override { return 0.05; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void Update(const OptimizerStep& step, const std::vector<ParameterSpec>&,
              OptimizerShard& shard, absl::Span<at::Tensor> state) override {
    const at::NoGradGuard no_grad;
    at::Tensor gradient = shard.gradient * step.gradient_scale;
    if (step.device_scale.defined()) {
      ++late_updates;
      gradient.mul_(step.device_scale);
      if (!at::isfinite(step.device_scale).item<bool>()) return;
    }
    state[0].mul_(0.9).add_(gradient);
    shard.master.sub_(state[0] *
                      (step.learning_rate / (1.0 + 1.0 / step.step)));
    if (step.step == overflow_at_) {
      shard.master.fill_(std::numeric_limits<float>::infinity());
    }
  }

  int late_updates = 0;

 private:
  const int64_t overflow_at_;
};

struct Settings {
  int64_t max_steps = 30;
  std::set<int64_t> bad_steps;
  std::set<int64_t> spikes;  // steps whose loss is too large
  LossSpikes loss_spikes;
  absl::optional<LossScaling> loss_scaling;
  int64_t overflow_at = 0;  // of ToyOptimizer
  int64_t stop_step = 0;    // in which a signal comes; 0: none
  std::string output_dir;   // default: a new one
  int late_updates = 0;     // what the run has done
};

absl::Status Train(ReadSums read, Settings* settings) {
  if (settings->output_dir.empty()) {
    settings->output_dir = NewTestFolder("run");
  }
  TrainJob job;
  RunConfig& config = job.loaded.config;
  config.set_name("toy");
  config.mutable_schedule()->set_kind(Schedule::LINEAR);
  config.mutable_schedule()->set_warmup_steps(5);
  config.mutable_schedule()->set_total_steps(40);
  config.mutable_train()->set_max_steps(settings->max_steps);
  config.mutable_train()->set_seed(3);
  config.mutable_train()->set_max_grad_norm(conformance::kToyMaxNorm);
  config.mutable_train()->set_eval_every(7);
  config.mutable_train()->set_eval_batches(2);
  config.mutable_train()->set_save_every(10);
  config.mutable_train()->set_resume(Train::AUTO);
  *config.mutable_train()->mutable_loss_spikes() = settings->loss_spikes;
  auto optimizer = std::make_unique<ToyOptimizer>(settings->overflow_at);
  const ToyOptimizer& updates = *optimizer;
  job.parts.model = std::make_unique<ToyModel>();
  job.parts.objective = std::make_unique<ToyObjective>(
      settings->bad_steps, settings->spikes, settings->stop_step);
  job.parts.train_data = std::make_unique<ToyData>();
  job.parts.eval_data = std::make_unique<ToyData>();
  job.parts.strategy = *MakePlugin<Strategy>(single::Config());
  job.parts.precision = std::make_unique<ToyPrecision>(settings->loss_scaling);
  job.parts.optimizer = std::move(optimizer);
  job.batch = {kBatch / 2, kBatch, 2};
  job.folder.path = settings->output_dir;
  read_sums = read;
  const absl::Status status = RunTraining(&job, RankInfo());
  settings->late_updates = updates.late_updates;
  return status;
}

std::vector<nlohmann::json> StepLines(const std::string& folder) {
  return WithoutTimes(ReadMetrics(folder).steps);
}

// All that a run leaves to go on from.
std::map<std::string, std::string> Checkpoints(const std::string& folder) {
  return Snapshot(folder + "/checkpoints");
}

// The tensors of the last checkpoint; its manifest has the config, too.
std::string SafetensorsText(const Settings& settings) {
  std::string last;
  for (const auto& [path, text] : Checkpoints(settings.output_dir)) {
    if (path.find("step-00000030/state-") != std::string::npos) last += text;
  }
  EXPECT_NE(last, "");
  return last;
}

void ExpectSame(const Settings& late, const Settings& at_once) {
  const Metrics one = ReadMetrics(late.output_dir);
  const Metrics other = ReadMetrics(at_once.output_dir);
  EXPECT_EQ(WithoutTimes(one.steps), WithoutTimes(other.steps));
  EXPECT_EQ(WithoutTimes(one.evals), WithoutTimes(other.evals));
  EXPECT_EQ(Checkpoints(late.output_dir), Checkpoints(at_once.output_dir));
}

TEST(DeferredSumsTest, ChangesNothing) {
  Settings late, at_once;
  ASSERT_TRUE(Train(ReadSums::kDeferred, &late).ok());
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &at_once).ok());
  EXPECT_EQ(late.late_updates, 30);
  EXPECT_EQ(at_once.late_updates, 0);
  EXPECT_EQ(ReadMetrics(late.output_dir).losses().size(), 30);
  EXPECT_EQ(ReadMetrics(late.output_dir).evals.size(), 5);
  ExpectSame(late, at_once);
}

// The next scale depends on sums that the host hasn't read.
TEST(DeferredSumsTest, LossScalesChangeNothing) {
  LossScaling scaling;
  scaling.initial_scale = 1024.0;
  scaling.growth_interval = 3;
  Settings late, at_once;
  late.loss_scaling = at_once.loss_scaling = scaling;
  // Before an evaluation, after it, before and after saving, and in a row.
  late.bad_steps = at_once.bad_steps = {5, 7, 8, 10, 11, 12, 22};
  ASSERT_TRUE(Train(ReadSums::kDeferred, &late).ok());
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &at_once).ok());
  ExpectSame(late, at_once);
  std::set<double> scales;
  for (const nlohmann::json& line : ReadMetrics(late.output_dir).steps) {
    scales.insert(line["loss_scale"].get<double>());
  }
  EXPECT_GE(scales.size(), 4);
}

TEST(DeferredSumsTest, NonFiniteStepsChangeNothing) {
  // Before an evaluation, after it, before and after saving, two in a row.
  Settings late, at_once;
  late.bad_steps = at_once.bad_steps = {3, 7, 8, 10, 11, 17, 18, 30};
  ASSERT_TRUE(Train(ReadSums::kDeferred, &late).ok());
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &at_once).ok());
  ExpectSame(late, at_once);
  int skipped = 0;
  for (const nlohmann::json& line : ReadMetrics(late.output_dir).steps) {
    skipped += line.value("skipped", false) ? 1 : 0;
  }
  EXPECT_EQ(skipped, 8);
}

TEST(DeferredSumsTest, SavedAndResumed) {
  Settings whole, parts;
  whole.bad_steps = parts.bad_steps = {13, 14};
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &whole).ok());
  for (const int64_t steps : {13, 20, 30}) {
    parts.max_steps = steps;
    ASSERT_TRUE(Train(ReadSums::kDeferred, &parts).ok());
  }
  EXPECT_EQ(StepLines(parts.output_dir), StepLines(whole.output_dir));
  EXPECT_EQ(SafetensorsText(parts), SafetensorsText(whole));
}

// A stop request stays, so that this run has a process of its own.
TEST(DeferredSumsTest, StopsOneStepLaterAndGoesOn) {
  Settings whole, stopped;
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &whole).ok());
  stopped.output_dir = NewTestFolder("run");
  stopped.stop_step = 16;
  EXPECT_EXIT(
      _exit(absl::IsCancelled(Train(ReadSums::kDeferred, &stopped)) ? 7 : 1),
      ::testing::ExitedWithCode(7), "");
  EXPECT_EQ(ReadMetrics(stopped.output_dir).losses().size(), 17);
  EXPECT_EQ(CheckpointSteps(stopped.output_dir).back(), 17);
  stopped.stop_step = 0;
  ASSERT_TRUE(Train(ReadSums::kDeferred, &stopped).ok());
  EXPECT_EQ(StepLines(stopped.output_dir), StepLines(whole.output_dir));
  EXPECT_EQ(SafetensorsText(stopped), SafetensorsText(whole));
}

TEST(DeferredSumsTest, ABrokenRunEnds) {
  Settings late, at_once;
  for (int64_t step = 4; step <= 30; ++step) {
    late.bad_steps.insert(step);
    at_once.bad_steps.insert(step);
  }
  ::testing::internal::CaptureStdout();
  const absl::Status status = Train(ReadSums::kDeferred, &late);
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("the gradient of 'mix.up.bias' isn't in the "
                                   "step after it"));
  EXPECT_THAT(out, ::testing::HasSubstr(
                       "the gradient of step 4 that wasn't finite: it comes "
                       "from rank 0's micro-batch 1 of 2 (samples 12, 13"));
  const absl::Status exact = Train(ReadSums::kBeforeUpdate, &at_once);
  EXPECT_EQ(exact.code(), status.code());
  EXPECT_THAT(
      std::string(exact.message()),
      ::testing::HasSubstr("in step 4 all ranks' losses are finite, "
                           "but the gradient of 'mix.up.bias' isn't, "));
  EXPECT_EQ(StepLines(late.output_dir), StepLines(at_once.output_dir));
}

LossSpikes Spikes(LossSpikes::Action action) {
  LossSpikes spikes;
  spikes.set_action(action);
  spikes.set_z_score(6);
  spikes.set_window(10);
  return spikes;
}

int CountLines(const std::string& folder, const char* key) {
  int count = 0;
  for (const nlohmann::json& line : ReadMetrics(folder).steps) {
    count += line.contains(key) ? 1 : 0;
  }
  return count;
}

TEST(DeferredSumsTest, SpikesAreJudgedOnTheDevice) {
  for (const LossSpikes::Action action : {LossSpikes::NOTE, LossSpikes::SKIP}) {
    Settings late, at_once;
    // Before an evaluation; before a save; two in a row.
    late.spikes = at_once.spikes = {14, 20, 21};
    late.loss_spikes = at_once.loss_spikes = Spikes(action);
    ASSERT_TRUE(Train(ReadSums::kDeferred, &late).ok());
    ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &at_once).ok());
    ExpectSame(late, at_once);
    const bool skip = action == LossSpikes::SKIP;
    EXPECT_EQ(CountLines(late.output_dir, "spike"), 3);
    EXPECT_EQ(CountLines(late.output_dir, "skipped"), skip ? 3 : 0);
  }
}

// As if the steps since the checkpoint had been skipped.
TEST(DeferredSumsTest, GoesBackToTheLastCheckpoint) {
  Settings skipped, back;
  skipped.bad_steps = {11, 12, 13, 14};
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &skipped).ok());
  back.spikes = {14};
  back.loss_spikes = Spikes(LossSpikes::GO_BACK);
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &back).ok());
  const std::vector<double> losses = ReadMetrics(back.output_dir).losses();
  const std::vector<double> same = ReadMetrics(skipped.output_dir).losses();
  ASSERT_EQ(losses.size(), 30u);
  for (size_t i = 14; i < 30; ++i) EXPECT_EQ(losses[i], same[i]) << i;
  EXPECT_EQ(SafetensorsText(back), SafetensorsText(skipped));

  // The sums of step 15 are read in step 16, which is passed over, too, unless
  // something else has them read at once.
  Settings late_skipped, late;
  late_skipped.bad_steps = {11, 12, 13, 14, 15, 16};
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &late_skipped).ok());
  late.spikes = {15};
  late.loss_spikes = Spikes(LossSpikes::GO_BACK);
  ASSERT_TRUE(Train(ReadSums::kDeferred, &late).ok());
  EXPECT_EQ(SafetensorsText(late), SafetensorsText(late_skipped));
}

TEST(DeferredSumsTest, TheWindowOfSpikesSurvivesAResume) {
  Settings whole, parts;
  whole.spikes = parts.spikes = {17};
  whole.loss_spikes = parts.loss_spikes = Spikes(LossSpikes::SKIP);
  ASSERT_TRUE(Train(ReadSums::kBeforeUpdate, &whole).ok());
  for (const int64_t steps : {15, 30}) {
    parts.max_steps = steps;
    ASSERT_TRUE(Train(ReadSums::kDeferred, &parts).ok());
  }
  EXPECT_EQ(CountLines(parts.output_dir, "spike"), 1);
  EXPECT_EQ(StepLines(parts.output_dir), StepLines(whole.output_dir));
  EXPECT_EQ(SafetensorsText(parts), SafetensorsText(whole));
}

// Two skipped steps later, without a checkpoint of what can't be gone on from.
TEST(DeferredSumsTest, WeightsThatOverflowEndTheRun) {
  Settings late, at_once;
  late.overflow_at = at_once.overflow_at = 13;
  const absl::Status status = Train(ReadSums::kBeforeUpdate, &at_once);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("after step 15"),
                               ::testing::HasSubstr("holds NaN"),
                               ::testing::HasSubstr("after step 10"),
                               ::testing::HasSubstr("learning_rate 0.05"),
                               ::testing::HasSubstr("step-00000010")));
  const absl::Status late_status = Train(ReadSums::kDeferred, &late);
  EXPECT_EQ(late_status.code(), status.code());
  for (const Settings& settings : {late, at_once}) {
    EXPECT_EQ(StepLines(settings.output_dir).size(), 14);
    EXPECT_EQ(CheckpointSteps(settings.output_dir), std::vector<int64_t>{10});
    EXPECT_EQ(ReadJson(settings.output_dir + "/summary.json")["status"],
              "failed");
  }
}

}  // namespace
}  // namespace capstan
