// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/algorithm_distillation/in_context.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/random.h"

namespace capstan::algorithm_distillation {
namespace {

constexpr int64_t kEndType = 2;

HistoryInput InputOf(absl::Span<const Tokens> rows) {
  int64_t longest = 1;
  for (const Tokens& row : rows) longest = std::max(longest, row.size());
  const int64_t count = static_cast<int64_t>(rows.size());
  HistoryInput input;
  input.transitions = at::zeros({count, longest, kHistoryColumns}, at::kByte);
  input.kinds =
      at::full({count, longest}, static_cast<int>(HistoryToken::kPadding),
               at::TensorOptions(at::kByte));
  input.lengths = at::empty({count}, at::kLong);
  auto* transitions = input.transitions.mutable_data_ptr<uint8_t>();
  auto* kinds = input.kinds.mutable_data_ptr<uint8_t>();
  auto* lengths = input.lengths.mutable_data_ptr<int64_t>();
  for (const Tokens& row : rows) {
    std::memcpy(transitions, row.transitions.data(),
                row.size() * sizeof(Transition));
    std::memcpy(kinds, row.kinds.data(), row.size());
    *lengths++ = row.size();
    transitions += longest * kHistoryColumns;
    kinds += longest;
  }
  return input;
}

// Samples from softmax(logits) by `uniform` in [0, 1); -1 if they aren't
// finite.
int DrawAction(absl::Span<const float> logits, double uniform) {
  std::array<double, darkroom::kActions> weights;
  const float greatest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return -1;
    weights[i] = std::exp(static_cast<double>(logits[i]) - greatest);
    total += weights[i];
  }
  double left = uniform * total;
  int action = 0;
  while (action + 1 < darkroom::kActions && left >= weights[action]) {
    left -= weights[action++];
  }
  return action;
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
        room_(options.form.room, Tasks(trials)),
        memories_(trials.size(), Memory(options.form)),
        shown_(trials.size()),
        asked_(trials.size()),
        actions_(trials.size()),
        rewards_(trials.size()) {
    if (options.form.compressed) cache_ = model->NewCache(room_.count());
  }

  // False if it was stopped.
  bool PlayEpisode(int64_t episode, std::vector<double>* returns) {
    room_.Reset();
    while (!room_.done()) {
      if (options_.stop()) return false;
      const int64_t step = episode * room_.room().horizon + room_.step();
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
  static std::vector<darkroom::Task> Tasks(absl::Span<const Trial> trials) {
    std::vector<darkroom::Task> tasks;
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
      const darkroom::Cell state = room_.states()[i];
      if (cache_ == nullptr) {
        shown_[i] = memories_[i].Show(state);
      } else {
        bool forget = false;
        shown_[i] = memories_[i].ShowNew(state, &forget);
        if (forget) cache_->Clear(static_cast<int64_t>(i));
      }
    }
    const HistoryInput input = InputOf(shown_);
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
    for (size_t i = 0; i < trials_.size(); ++i) {
      if (!asked_[i]) continue;
      const float* row = logits_.const_data_ptr<float>() + i * columns;
      const float* types = row + darkroom::kActions;
      const bool end =
          compressed && std::max_element(types, types + 3) == types + kEndType;
      if (end && end_first && memories_[i].size() > 0) {
        memories_[i].EndRegion();
        continue;
      }
      const int action = DrawAction(
          {row, darkroom::kActions},
          RandomUniform(options_.key, (trials_[i].number << 32) + step));
      finite_ = finite_ && action >= 0;
      actions_[i] = static_cast<uint8_t>(std::max(action, 0));
      ends_[i] = end && !end_first && options_.form.last_action;
      asked_[i] = false;
    }
  }

  // Takes the actions and records the results.
  void Step() {
    const std::vector<darkroom::Cell> before = room_.states();
    room_.Step(actions_.data(), rewards_.data());
    const HistoryForm& form = options_.form;
    for (size_t i = 0; i < trials_.size(); ++i) {
      const bool restarts = room_.done() && !form.terminal_states;
      const darkroom::Cell next =
          restarts ? trials_[i].task.start : room_.states()[i];
      memories_[i].Add({before[i].row, before[i].column, actions_[i],
                        rewards_[i], next.row, next.column});
      const bool full = memories_[i].size() == form.length;
      if (form.compressed && (ends_[i] || full)) memories_[i].EndRegion();
    }
  }

  HistoryModel* const model_;
  const absl::Span<const Trial> trials_;
  const TrialOptions& options_;
  UnitRunner* const runner_;
  darkroom::Darkroom room_;
  std::unique_ptr<HistoryCache> cache_;  // null: plain
  std::vector<Memory> memories_;
  std::vector<Tokens> shown_;
  std::vector<char> asked_;
  std::vector<uint8_t> actions_;
  std::vector<uint8_t> rewards_;
  std::vector<char> ends_ = std::vector<char>(trials_.size());
  at::Tensor logits_;
  bool finite_ = true;
};

}  // namespace

void Tokens::Add(HistoryToken kind, const Transition& transition) {
  kinds.push_back(kind);
  transitions.push_back(transition);
}

Tokens Memory::Show(darkroom::Cell state) const {
  Memory all = *this;
  all.opened_ = false;
  all.shown_ = 0;
  bool forget = false;
  return all.ShowNew(state, &forget);
}

Tokens Memory::ShowNew(darkroom::Cell state, bool* forget) {
  Tokens tokens;
  *forget = !opened_;
  if (!opened_ && form_.compressed) {
    if (!previous_.empty()) {
      tokens.Add(HistoryToken::kStart);
      for (const Transition& transition : previous_) {
        tokens.Add(HistoryToken::kTransition, transition);
      }
      tokens.Add(HistoryToken::kEnd);
    }
    tokens.Add(HistoryToken::kStart);
  }
  for (; shown_ < current_.size(); ++shown_) {
    tokens.Add(HistoryToken::kTransition, current_[shown_]);
  }
  opened_ = true;
  tokens.Add(HistoryToken::kQuery, {state.row, state.column});
  return tokens;
}

void Memory::Add(const Transition& transition) {
  current_.push_back(transition);
  if (!form_.compressed && size() == form_.length) {
    current_.erase(current_.begin());
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

}  // namespace capstan::algorithm_distillation
