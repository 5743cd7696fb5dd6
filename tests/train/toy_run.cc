// SPDX-License-Identifier: Apache-2.0
#include "tests/train/toy_run.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/launch/launcher.h"
#include "host/plugins/plugin_host.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/ddp/ddp.pb.h"
#include "tests/conformance/toy_model.h"
#include "tests/conformance/toy_training.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_wrappers.h"
#include "trainer/session/train.h"

namespace capstan {
namespace {

using conformance::ToyBatch;
using conformance::ToyModel;

constexpr int64_t kSamples = 40;
// Of the rich objective's loss.
constexpr double kScale = 100.0;

// Set by a failed sample of a run with ToyRun::end_fails.
bool end_fails_next = false;

class FailingEnd final : public OneBucket {
 public:
  void FinishForward() override {
    if (std::exchange(end_fails_next, false)) throw std::bad_alloc();
  }
};

class ToyData final : public DatasetReader {
 public:
  explicit ToyData(const ToyRun* run) : run_(run) {}
  int64_t size() const override { return kSamples; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    std::vector<at::Tensor> ids, targets, rare;
    for (const int64_t index : indices) {
      ToyBatch toy = conformance::ToySamples(index, 1);
      for (int64_t t = 0; t < toy.targets.size(1); ++t) {
        if (run_->trained && !run_->trained(index, t)) {
          toy.targets[0][t] = -100;
        }
      }
      ids.push_back(toy.ids);
      targets.push_back(toy.targets);
      rare.push_back(toy.rare);
    }
    *batch = {{"ids", at::cat(ids)},
              {"targets", at::cat(targets)},
              {"rare", at::cat(rare)}};
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }

 private:
  const ToyRun* const run_;
  const std::unique_ptr<Tokenizer> tokenizer_ =
      run_->sample_fault ? NewByteTokenizer() : nullptr;
};

class ToyObjective final : public Objective {
 public:
  ToyObjective(const ToyRun* run, int rank) : run_(run), rank_(rank) {}

  absl::Status Check(Model&, const DatasetReader&) const override {
    return absl::OkStatus();
  }
  int64_t CountTargets(const Batch& batch, const StepInfo&) const override {
    return batch.at("targets").ne(-100).sum().item<int64_t>();
  }
  int step_totals() const override { return run_->rich_objective ? 1 : 0; }
  std::vector<double> StepTotals(const Batch& batch,
                                 const StepInfo& info) const override {
    return {static_cast<double>(CountTargets(batch, info))};
  }
  std::vector<MetricTags> metrics() const override {
    if (!run_->rich_objective) return {};
    return {{"train/mean", "test/mean"}};
  }
  absl::StatusOr<std::vector<double>> Measure(Model&, const DatasetReader&,
                                              const MeasureInfo& info,
                                              UnitRunner&) override {
    if (!run_->rich_objective) return std::vector<double>();
    std::vector<double> mine(5, 0.0);
    for (int i = info.rank; i < 5; i += info.world_size) mine[i] = i + 1.0;
    info.progress(1.0);
    return mine;
  }
  Measurement Summarize(absl::Span<const double> sums,
                        const MeasureInfo& info) const override {
    Measurement measured;
    const std::vector<double> values(sums.begin(), sums.end());
    measured.scalars = {
        {"eval/first", sums[0]},
        {"eval/last_time", info.last ? 1.0 : 0.0},
        {"eval/deterministic", at::globalContext().deterministicAlgorithms()}};
    measured.curves = {{"ramp", "place", "value", values}};
    measured.arrays = {{"ramp", {1, 5}, values}};
    return measured;
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override {
    ToyBatch toy;
    toy.ids = batch.at("ids");
    toy.targets = batch.at("targets");
    toy.rare = batch.at("rare");
    toy.any_rare = true;
    if (run_->room && toy.ids.size(0) > run_->room(rank_)) {
      throw std::bad_alloc();
    }
    LossSum loss;
    loss.sum = static_cast<ToyModel&>(model).LossSum(toy, runner);
    loss.count = CountTargets(batch, info);
    loss.tokens = toy.ids.numel();
    if (run_->rich_objective) {
      if (loss.count > 0 || !run_->sparse_metrics) {
        loss.metrics = at::tensor({loss.sum.item<double>(),
                                   static_cast<double>(loss.count)},
                                  at::kDouble)
                           .view({1, 2});
      }
      loss.sum = loss.sum * (kScale / info.totals.at(0));
    }
    const bool scripted =
        !at::GradMode::is_enabled() && !run_->eval_losses.empty();
    if (scripted) {
      // One batch an evaluation.
      loss.count = 1;
      loss.sum = at::full({}, run_->eval_losses.at(evaluations_++));
    }
    return loss;
  }
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override {
    const at::NoGradGuard no_gradients;
    const int sample = samples_++;
    std::vector<int64_t> text = prompt;
    for (int i = 0; i < 4; ++i) {
      if (options.stop()) return absl::CancelledError("stopped");
      const SampleFault fault = run_->sample_fault(rank_, sample, i);
      end_fails_next = run_->end_fails && fault != SampleFault::kNone;
      if (fault == SampleFault::kBefore) throw std::bad_alloc();
      ToyBatch toy = conformance::ToySamples(sample, 1);
      toy.any_rare = true;
      static_cast<ToyModel&>(model).LossSum(
          toy, runner,
          fault == SampleFault::kInside ? conformance::ToyFault::kThrowInForward
                                        : conformance::ToyFault::kNone);
      if (fault == SampleFault::kAfter) throw std::bad_alloc();
      text.push_back('x');
    }
    return text;
  }

 private:
  const ToyRun* const run_;
  const int rank_;
  size_t evaluations_ = 0;
  int samples_ = 0;
};

class ToyPrecision final : public Precision {
 public:
  explicit ToyPrecision(bool depends_on_device) : depends_(depends_on_device) {}
  PrecisionPolicy policy() const override { return {}; }
  bool depends_on_device() const override { return depends_; }
  PrecisionPolicy PolicyOn(const DeviceFacts& device) const override {
    PrecisionPolicy policy;
    if (depends_ && device.compute_capability >= 80) {
      policy.compute = at::kBFloat16;
    }
    return policy;
  }

 private:
  const bool depends_;
};

// From its library: ddp is linked in, and a program has one plugin at most.
absl::StatusOr<std::unique_ptr<Strategy>> Fsdp() {
  constexpr char kType[] = "capstan.fsdp.Config";
  static PluginHost* const host = new PluginHost(
      {(std::filesystem::current_path() / "strategies/fsdp").string()});
  CAPSTAN_RETURN_IF_ERROR(host->Load(kType).status());
  return host->Create<Strategy>(kType, PluginCategory::kStrategy, "");
}

absl::Status TrainRank(const ToyRun& run, const RankInfo& rank) {
  TrainJob job;
  RunConfig& config = job.loaded.config;
  config.set_name("toy");
  if (!google::protobuf::TextFormat::ParseFromString(run.train,
                                                     config.mutable_train())) {
    return absl::InvalidArgumentError(run.train);
  }
  config.mutable_train()->set_seed(3);
  job.parts.model = std::make_unique<ToyModel>();
  job.parts.objective = std::make_unique<ToyObjective>(&run, rank.rank);
  job.parts.train_data = std::make_unique<ToyData>(&run);
  if (config.train().eval_every() > 0) {
    job.parts.eval_data = std::make_unique<ToyData>(&run);
  }
  if (run.sample_fault) {
    config.mutable_train()->add_sample_prompts()->set_prompt("ab");
  }
  if (run.end_fails) {
    job.parts.strategy = std::make_unique<FailingEnd>();
  } else if (run.sharded) {
    CAPSTAN_ASSIGN_OR_RETURN(job.parts.strategy, Fsdp());
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(job.parts.strategy,
                             MakePlugin<Strategy>(ddp::Config()));
  }
  const bool depends = run.compute_capability != nullptr;
  job.parts.precision = std::make_unique<ToyPrecision>(depends);
  if (depends) {
    job.parts.device.compute_capability = run.compute_capability(rank.rank);
  }
  job.parts.optimizer = std::make_unique<conformance::ToyOptimizer>();
  job.batch.global_batch_size = run.global_batch;
  job.batch.automatic = run.automatic;
  job.batch = WithMicroBatch(job.batch, run.micro_batch, run.ranks);
  job.folder.path = run.output_dir;
  if (run.change) run.change(rank.rank, &job.parts);
  return RunTraining(&job, rank);
}

}  // namespace

int RunToy(ToyRun* run) {
  if (run->output_dir.empty()) run->output_dir = NewTestFolder("run");
  const std::string out = run->output_dir + ".out";
  return LaunchRanks(run->ranks, [run, &out](const RankInfo& rank) {
    if (rank.rank == 0) {
      const int fd = open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      dup2(fd, STDOUT_FILENO);
      close(fd);
    }
    return TrainRank(*run, rank);
  });
}

std::string MustTrain(ToyRun run) {
  EXPECT_EQ(RunToy(&run), 0);
  return run.output_dir;
}

std::string MustFail(ToyRun* run) {
  ::testing::internal::CaptureStderr();
  const int exit_code = RunToy(run);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(exit_code, 1) << said;
  return said;
}

std::string Printed(const std::string& output_dir) {
  return ReadText(output_dir + ".out");
}

}  // namespace capstan
