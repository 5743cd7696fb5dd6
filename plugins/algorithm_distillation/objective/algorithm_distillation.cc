// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/objective/algorithm_distillation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/algorithm_distillation/play.h"
#include "plugins/sdk/lib/field_check.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::algorithm_distillation {
namespace {

constexpr int64_t kEndType = 2;
constexpr char kAction[] = "action";

HistoryInput InputOf(absl::Span<const Tokens> rows,
                     const HistoryColumns& columns) {
  int64_t longest = 1;
  for (const Tokens& row : rows) longest = std::max(longest, row.size());
  const int64_t count = static_cast<int64_t>(rows.size());
  HistoryInput input;
  input.transitions = at::zeros({count, longest, columns.count()}, at::kByte);
  input.kinds =
      at::full({count, longest}, static_cast<int>(HistoryToken::kPadding),
               at::TensorOptions(at::kByte));
  input.lengths = at::empty({count}, at::kLong);
  auto* transitions = input.transitions.mutable_data_ptr<uint8_t>();
  auto* kinds = input.kinds.mutable_data_ptr<uint8_t>();
  auto* lengths = input.lengths.mutable_data_ptr<int64_t>();
  for (const Tokens& row : rows) {
    std::memcpy(transitions, row.transitions.data(), row.transitions.size());
    std::memcpy(kinds, row.kinds.data(), row.size());
    *lengths++ = row.size();
    transitions += longest * columns.count();
    kinds += longest;
  }
  return input;
}

// Samples from softmax(logits) by `uniform` in [0, 1); -1 if they aren't
// finite.
int DrawAction(absl::Span<const float> logits, double uniform) {
  std::vector<double> weights(logits.size());
  const float greatest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return -1;
    weights[i] = std::exp(static_cast<double>(logits[i]) - greatest);
    total += weights[i];
  }
  double left = uniform * total;
  size_t action = 0;
  while (action + 1 < weights.size() && left >= weights[action]) {
    left -= weights[action++];
  }
  return static_cast<int>(action);
}

// The trials of one PlayInContext, one row of the model's batch each.
class Player {
 public:
  Player(HistoryModel* model, absl::Span<const Trial> trials,
         const TrialOptions& options, UnitRunner* runner)
      : model_(model),
        trials_(trials),
        options_(options),
        runner_(runner),
        play_(*options.form.environment, TasksOf(trials)),
        columns_{play_.spec().numbers},
        start_(play_.observations()),
        memories_(trials.size(), Memory(options.form)),
        shown_(trials.size()),
        asked_(trials.size()),
        actions_(trials.size()),
        rewards_(trials.size()) {
    if (options.form.compressed) cache_ = model->NewCache(trials.size());
  }

  // False if it was stopped.
  bool PlayEpisode(int64_t episode, std::vector<double>* returns) {
    play_.Reset();
    while (!play_.done()) {
      if (options_.stop()) return false;
      const int64_t step = episode * play_.spec().horizon + play_.step();
      Act(step);
      Step();
      for (size_t i = 0; i < trials_.size(); ++i) {
        (*returns)[i * options_.episodes + episode] += rewards_[i];
      }
    }
    return true;
  }

  bool finite() const { return finite_; }

 private:
  static std::vector<int> TasksOf(absl::Span<const Trial> trials) {
    std::vector<int> tasks;
    for (const Trial& trial : trials) tasks.push_back(trial.task);
    return tasks;
  }

  // Chooses an action for each trial. If a region ends without an action, its
  // trial is asked a second time. The second call is unconditional: otherwise
  // ranks could disagree on the number of calls.
  void Act(int64_t step) {
    const HistoryForm& form = options_.form;
    std::fill(asked_.begin(), asked_.end(), true);
    Ask();
    Answer(step, !form.last_action);
    if (form.compressed && !form.last_action) {
      Ask();
      Answer(step, false);
    }
  }

  // Computes logits_ for the trials in asked_.
  void Ask() {
    for (size_t i = 0; i < trials_.size(); ++i) {
      shown_[i] = {};
      if (!asked_[i] && cache_ != nullptr) continue;
      const uint8_t* const state = play_.observation(i);
      if (cache_ == nullptr) {
        shown_[i] = memories_[i].Show(state);
      } else {
        bool forget = false;
        shown_[i] = memories_[i].ShowNew(state, &forget);
        if (forget) cache_->Clear(static_cast<int64_t>(i));
      }
    }
    const HistoryInput input = InputOf(shown_, columns_);
    const at::Tensor logits =
        cache_ == nullptr ? model_->LastLogits(input, *runner_)
                          : model_->NextLogits(*cache_, input, *runner_);
    logits_ = logits.to(at::kCPU, at::kFloat).contiguous();
  }

  // Chooses the actions; if the model ends a region and `end_first`, ends it
  // and leaves the trial in asked_.
  void Answer(int64_t step, bool end_first) {
    const bool compressed = options_.form.compressed;
    const int64_t columns = logits_.size(1);
    const int choices = play_.spec().actions;
    for (size_t i = 0; i < trials_.size(); ++i) {
      if (!asked_[i]) continue;
      const float* row = logits_.const_data_ptr<float>() + i * columns;
      const float* types = row + choices;
      const bool end =
          compressed && std::max_element(types, types + 3) == types + kEndType;
      if (end && end_first && memories_[i].size() > 0) {
        memories_[i].EndRegion();
        continue;
      }
      const int action = DrawAction(
          {row, static_cast<size_t>(choices)},
          RandomUniform(options_.key, (trials_[i].number << 32) + step));
      finite_ = finite_ && action >= 0;
      actions_[i] = static_cast<uint8_t>(std::max(action, 0));
      ends_[i] = end && !end_first && options_.form.last_action;
      asked_[i] = false;
    }
  }

  // Takes the actions and records the results.
  void Step() {
    const std::vector<uint8_t> before = play_.observations();
    play_.Step(actions_.data(), rewards_.data());
    const HistoryForm& form = options_.form;
    const std::vector<uint8_t>& after =
        play_.done() && !form.terminal_states ? start_ : play_.observations();
    std::vector<uint8_t> transition(columns_.count());
    for (size_t i = 0; i < trials_.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) * columns_.numbers;
      std::copy_n(&before[at], columns_.numbers, transition.begin());
      transition[columns_.action()] = actions_[i];
      transition[columns_.reward()] = play_.spec().RewardByte(rewards_[i]);
      std::copy_n(&after[at], columns_.numbers,
                  transition.begin() + columns_.next());
      memories_[i].Add(transition);
      const bool full = memories_[i].size() == form.length;
      if (form.compressed && (ends_[i] || full)) memories_[i].EndRegion();
    }
  }

  HistoryModel* const model_;
  const absl::Span<const Trial> trials_;
  const TrialOptions& options_;
  UnitRunner* const runner_;
  Play play_;
  const HistoryColumns columns_;
  const std::vector<uint8_t> start_;     // of an episode, [trials, numbers]
  std::unique_ptr<HistoryCache> cache_;  // null: plain
  std::vector<Memory> memories_;
  std::vector<Tokens> shown_;
  std::vector<char> asked_;
  std::vector<uint8_t> actions_;
  std::vector<int> rewards_;
  std::vector<char> ends_ = std::vector<char>(trials_.size());
  at::Tensor logits_;
  bool finite_ = true;
};

constexpr int64_t kDefaultEpisodes = 50;
constexpr int64_t kDefaultFinalEpisodes = 500;

int64_t Rows(const Batch& batch) {
  return RequiredTensor(batch, "lengths").numel();
}

// On a GPU lengthens histories by padding to LengthOnGpu.
void RoundUpLength(int64_t most, HistoryInput* input) {
  if (!input->kinds.is_cuda()) return;
  const int64_t length = input->kinds.size(1);
  const int64_t more = LengthOnGpu(length, most) - length;
  if (more == 0) return;
  input->kinds = at::constant_pad_nd(input->kinds, {0, more},
                                     static_cast<int>(HistoryToken::kPadding));
  input->transitions = at::constant_pad_nd(input->transitions, {0, 0, 0, more});
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
  const EnvironmentSpec data = form.environment->spec();
  if (spec.actions != data.actions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the data has ", data.actions, " actions, the model ", spec.actions,
        ": set the model's actions to ", data.actions));
  }
  const std::vector<int64_t> bounds(data.bounds, data.bounds + data.numbers);
  bool fits = spec.bounds.size() == bounds.size();
  for (size_t i = 0; fits && i < bounds.size(); ++i) {
    fits = spec.bounds[i] >= bounds[i];
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the numbers of the data's observations are below ",
        absl::StrJoin(bounds, " and "), ", those of the model's below ",
        absl::StrJoin(spec.bounds, " and "),
        ": set the model's grid (two equal bounds) or observation"));
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

Tokens Memory::Show(const uint8_t* state) const {
  Memory all = *this;
  all.opened_ = false;
  all.shown_ = 0;
  bool forget = false;
  return all.ShowNew(state, &forget);
}

void Memory::AddMarker(HistoryToken kind, Tokens* tokens) const {
  tokens->kinds.push_back(kind);
  tokens->transitions.resize(tokens->kinds.size() * columns_.count());
}

Tokens Memory::ShowNew(const uint8_t* state, bool* forget) {
  Tokens tokens;
  const auto add = [&](const std::vector<uint8_t>& from, size_t begin) {
    tokens.kinds.insert(tokens.kinds.end(),
                        (from.size() - begin) / columns_.count(),
                        HistoryToken::kTransition);
    tokens.transitions.insert(tokens.transitions.end(), from.begin() + begin,
                              from.end());
  };
  *forget = !opened_;
  if (!opened_ && form_.compressed) {
    if (!previous_.empty()) {
      AddMarker(HistoryToken::kStart, &tokens);
      add(previous_, 0);
      AddMarker(HistoryToken::kEnd, &tokens);
    }
    AddMarker(HistoryToken::kStart, &tokens);
  }
  add(current_, shown_);
  shown_ = current_.size();
  opened_ = true;
  AddMarker(HistoryToken::kQuery, &tokens);
  std::copy_n(state, columns_.numbers,
              tokens.transitions.end() - columns_.count());
  return tokens;
}

void Memory::Add(const std::vector<uint8_t>& transition) {
  current_.insert(current_.end(), transition.begin(), transition.end());
  if (!form_.compressed && size() == form_.length) {
    current_.erase(current_.begin(), current_.begin() + columns_.count());
  }
}

void Memory::EndRegion() {
  previous_ = std::move(current_);
  current_.clear();
  opened_ = false;
  shown_ = 0;
}

absl::StatusOr<std::vector<double>> PlayInContext(
    HistoryModel& model, absl::Span<const Trial> trials,
    const TrialOptions& options, UnitRunner& runner) {
  const at::NoGradGuard no_gradients;
  std::vector<double> returns(trials.size() * options.episodes, 0.0);
  Player player(&model, trials, options, &runner);
  for (int64_t episode = 0; episode < options.episodes; ++episode) {
    if (!player.PlayEpisode(episode, &returns)) {
      return absl::CancelledError("the evaluation was stopped");
    }
    options.progress((episode + 1.0) / options.episodes);
  }
  if (!player.finite()) {
    return absl::InvalidArgumentError(
        "the model's logits are not finite: no action can be drawn");
  }
  return returns;
}

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
  const int count = source.history_form().environment->tasks();
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
  RequiredTensor(batch, kAction);
  const at::Tensor learned = HostTensor(batch, kAction).ne(kIgnoredTarget);
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
  const HistorySpec spec = histories->history_spec();
  RoundUpLength(spec.max_length, &input);
  const at::Tensor logits = histories->LastLogits(input, runner);

  const double smoothing = config_.label_smoothing();
  const Part action = PartOf(logits.narrow(1, 0, spec.actions),
                             RequiredTensor(batch, kAction), smoothing);
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
        {task, static_cast<uint64_t>(task) * streams + t % streams});
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
