// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/algorithm_distillation/algorithm_distillation.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/objective/algorithm_distillation/in_context.h"
#include "plugins/sdk/lib/field_check.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::algorithm_distillation {
namespace {

constexpr int64_t kDefaultEpisodes = 50;
constexpr int64_t kDefaultFinalEpisodes = 500;

int64_t Rows(const Batch& batch) {
  return RequiredTensor(batch, "lengths").numel();
}

// One of the two losses, over the targets that aren't kIgnoredTarget.
struct Part {
  at::Tensor sum;      // float32, with gradient
  at::Tensor metrics;  // [2, 2] float64: loss and accuracy, sums and counts
};

Part PartOf(const at::Tensor& logits, const at::Tensor& targets,
            double label_smoothing) {
  Part part;
  part.sum =
      at::cross_entropy_loss(logits, targets, /*weight=*/{}, at::Reduction::Sum,
                             kIgnoredTarget, label_smoothing);
  const at::Tensor count = targets.ne(kIgnoredTarget).sum().to(at::kDouble);
  const at::Tensor right =
      logits.detach().argmax(1).eq(targets).sum().to(at::kDouble);
  part.metrics =
      at::stack({at::stack({part.sum.detach().to(at::kDouble), count}),
                 at::stack({right, count})});
  return part;
}

// Rejects data that fits neither the model nor the evaluation.
absl::Status CheckForm(const HistorySpec& spec, const HistoryForm& form) {
  if (spec.compressed != form.compressed) {
    return absl::InvalidArgumentError(
        spec.compressed
            ? "the model reads histories in regions, the data has plain ones: "
              "set the data's mode to COMPRESSED, or the model's to plain"
            : "the data has histories in regions, the model reads plain ones: "
              "set the data's mode to PLAIN, or the model's to compressed");
  }
  if (spec.actions != darkroom::kActions) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data has ", darkroom::kActions,
                     " actions, the model ", spec.actions));
  }
  if (spec.grid < form.room.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data's rooms are ", form.room.size,
                     " cells wide, the model's ", spec.grid));
  }
  if (spec.max_length < form.max_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data has samples of ", form.max_tokens(),
                     " tokens, the model's n_transit is ", spec.max_length,
                     ": it must be at least ", form.max_tokens()));
  }
  return absl::OkStatus();
}

double Mean(absl::Span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

double Deviation(absl::Span<const double> values) {
  const double mean = Mean(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AlgorithmDistillation>>
AlgorithmDistillation::Create(const Config& config) {
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      config.label_smoothing() >= 0.0 && config.label_smoothing() < 1.0,
      "label_smoothing", "in [0, 1)", config.label_smoothing()));
  const Evaluation& evaluation = config.evaluation();
  for (const auto& [field, value] :
       {std::pair<const char*, int64_t>{"episodes", evaluation.episodes()},
        {"final_episodes", evaluation.final_episodes()},
        {"streams", evaluation.streams()}}) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(
        value >= 0, absl::StrCat("evaluation.", field), "0 or greater", value));
  }
  return std::unique_ptr<AlgorithmDistillation>(
      new AlgorithmDistillation(config));
}

int64_t AlgorithmDistillation::Episodes(bool last) const {
  const Evaluation& evaluation = config_.evaluation();
  if (last) {
    return evaluation.has_final_episodes() ? evaluation.final_episodes()
                                           : kDefaultFinalEpisodes;
  }
  return evaluation.has_episodes() ? evaluation.episodes() : kDefaultEpisodes;
}

int64_t AlgorithmDistillation::Streams() const {
  return std::max<int64_t>(1, config_.evaluation().streams());
}

absl::Status AlgorithmDistillation::CheckTasks(
    const HistorySource& source) const {
  const HistoryForm form = source.history_form();
  const int count = darkroom::TaskCount(form.variant, form.room);
  for (const int task : config_.evaluation().tasks()) {
    if (task < 0 || task >= count) {
      return FieldError("evaluation.tasks",
                        absl::StrCat("has ", task,
                                     ", but there are only tasks "
                                     "0 to ",
                                     count - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status AlgorithmDistillation::Check(Model& model,
                                          const DatasetReader& data) const {
  const auto* histories = dynamic_cast<const HistoryModel*>(&model);
  if (histories == nullptr) {
    return absl::InvalidArgumentError(
        "algorithm_distillation needs a model of learning histories, which "
        "this model isn't: take capstan.ad_transformer");
  }
  const auto* source = dynamic_cast<const HistorySource*>(&data);
  if (source == nullptr) {
    return absl::InvalidArgumentError(
        "algorithm_distillation needs learning histories, which this data "
        "isn't: take capstan.ad_history");
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckForm(histories->history_spec(), source->history_form()));
  return CheckTasks(*source);
}

int64_t AlgorithmDistillation::CountTargets(const Batch& batch,
                                            const StepInfo&) const {
  return Rows(batch);
}

std::vector<double> AlgorithmDistillation::StepTotals(const Batch& batch,
                                                      const StepInfo&) const {
  const at::Tensor learned = RequiredTensor(batch, "action").ne(kIgnoredTarget);
  return {static_cast<double>(Rows(batch)),
          static_cast<double>(learned.sum().item<int64_t>())};
}

std::vector<MetricTags> AlgorithmDistillation::metrics() const {
  return {{"train/loss_action", "test/loss_action"},
          {"train/acc_action", "test/acc_action"},
          {"train/loss_token_type", "test/loss_token_type"},
          {"train/acc_token_type", "test/acc_token_type"}};
}

LossSum AlgorithmDistillation::Compute(Model& model, const Batch& batch,
                                       const StepInfo& info,
                                       UnitRunner& runner) {
  auto* histories = dynamic_cast<HistoryModel*>(&model);
  CHECK(histories != nullptr) << "Check comes first";
  CHECK_EQ(info.totals.size(), 2u);
  HistoryInput input;
  input.transitions = RequiredTensor(batch, "transitions");
  input.kinds = RequiredTensor(batch, "kinds");
  input.lengths = RequiredTensor(batch, "lengths");
  input.seed = info.seed;
  // Dropout only in training.
  if (info.training)
    input.sample_positions = RequiredTensor(batch, kSamplePosition);
  const at::Tensor logits = histories->LastLogits(input, runner);
  const HistorySpec spec = histories->history_spec();

  const double smoothing = config_.label_smoothing();
  const Part action = PartOf(logits.narrow(1, 0, spec.actions),
                             RequiredTensor(batch, "action"), smoothing);
  // sum / rows = sum of actions' losses / rows with an action, over the step.
  const double actions = info.totals[1];
  LossSum loss;
  loss.sum = action.sum.mul(actions > 0 ? info.totals[0] / actions : 0.0);
  loss.metrics = action.metrics;
  if (spec.compressed) {
    const Part type = PartOf(logits.narrow(1, spec.actions, 3),
                             RequiredTensor(batch, "token_type"), smoothing);
    loss.sum = loss.sum.add(type.sum);
    loss.metrics = at::cat({loss.metrics, type.metrics});
  } else {
    loss.metrics = at::cat({loss.metrics, at::zeros_like(loss.metrics)});
  }
  loss.count = Rows(batch);
  loss.tokens = loss.count;
  return loss;
}

absl::StatusOr<std::vector<double>> AlgorithmDistillation::Measure(
    Model& model, const DatasetReader& eval_data, const MeasureInfo& info,
    UnitRunner& runner) {
  const int64_t episodes = Episodes(info.last);
  if (episodes == 0) return std::vector<double>();
  auto* histories = dynamic_cast<HistoryModel*>(&model);
  const auto* source = dynamic_cast<const HistorySource*>(&eval_data);
  CHECK(histories != nullptr && source != nullptr) << "Check comes first";
  std::vector<int> tasks(config_.evaluation().tasks().begin(),
                         config_.evaluation().tasks().end());
  if (tasks.empty()) tasks = source->tasks();

  TrialOptions options;
  options.form = source->history_form();
  options.episodes = episodes;
  options.key = RandomKey(info.seed, "algorithm_distillation.evaluation");
  options.progress = info.progress;
  options.stop = info.stop;
  // Rank t % world_size plays trial t, which is of task t / streams. A rank
  // with fewer trials plays extra ones, which don't count.
  const int64_t streams = Streams();
  const int64_t count = static_cast<int64_t>(tasks.size()) * streams;
  const int64_t share = (count + info.world_size - 1) / info.world_size;
  std::vector<Trial> trials;
  for (int64_t i = 0; i < share; ++i) {
    const int64_t t = (i * info.world_size + info.rank) % count;
    const int task = tasks[t / streams];
    // By task and stream, so that a goal's histories don't depend on the other
    // tasks.
    trials.push_back(
        {darkroom::MakeTask(options.form.variant, options.form.room, task),
         static_cast<uint64_t>(task) * streams + t % streams});
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<double> returns,
                           PlayInContext(*histories, trials, options, runner));
  std::vector<double> all(count * episodes, 0.0);
  for (int64_t i = 0; i < share; ++i) {
    const int64_t t = i * info.world_size + info.rank;
    if (t >= count) break;
    std::copy_n(returns.begin() + i * episodes, episodes,
                all.begin() + t * episodes);
  }
  return all;
}

Measurement AlgorithmDistillation::Summarize(absl::Span<const double> sums,
                                             const MeasureInfo& info) const {
  Measurement measurement;
  const int64_t episodes = Episodes(info.last);
  if (episodes == 0) return measurement;
  const int64_t streams = Streams();
  const int64_t tasks = static_cast<int64_t>(sums.size()) / episodes / streams;
  // The mean over streams by task, and over all trials by episode.
  std::vector<double> result(tasks * episodes, 0.0);
  std::vector<double> curve(episodes, 0.0);
  for (size_t i = 0; i < sums.size(); ++i) {
    const int64_t episode = static_cast<int64_t>(i) % episodes;
    const int64_t task = static_cast<int64_t>(i) / episodes / streams;
    result[task * episodes + episode] += sums[i] / streams;
    curve[episode] += sums[i] / (tasks * streams);
  }
  const int64_t tenth = std::max<int64_t>(1, episodes / 10);
  const absl::Span<const double> by_episode(curve);
  measurement.scalars = {
      {"eval/mean_return", Mean(curve)},
      {"eval/mean_return_first_tenth", Mean(by_episode.first(tenth))},
      {"eval/mean_return_last_tenth", Mean(by_episode.last(tenth))},
      {"eval/std_return", Deviation(result)},
  };
  measurement.curves = {{"return", "episode", "mean return", curve}};
  measurement.arrays = {{"eval_result", {tasks, episodes}, std::move(result)}};
  return measurement;
}

absl::StatusOr<std::vector<int64_t>> AlgorithmDistillation::Sample(
    Model&, const std::vector<int64_t>&, const SampleOptions&, UnitRunner&) {
  return absl::UnimplementedError(
      "algorithm_distillation has no text to continue; its evaluation plays "
      "episodes in context (docs/algorithm_distillation.md)");
}

}  // namespace capstan::algorithm_distillation
