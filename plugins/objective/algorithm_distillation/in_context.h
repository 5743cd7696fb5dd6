// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_ALGORITHM_DISTILLATION_IN_CONTEXT_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_ALGORITHM_DISTILLATION_IN_CONTEXT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/algorithm_distillation/history_source.h"

namespace capstan::algorithm_distillation {

using Transition = std::array<uint8_t, kHistoryColumns>;

// Tokens of one history, as a row of HistoryInput.
struct Tokens {
  std::vector<Transition> transitions;
  std::vector<HistoryToken> kinds;

  void Add(HistoryToken kind, const Transition& transition = {});
  int64_t size() const { return static_cast<int64_t>(kinds.size()); }
};

// The part of a history shown to the model as the model acts. Independent of
// other histories: regions that they close have no effect here.
class Memory {
 public:
  explicit Memory(const HistoryForm& form) : form_(form) {}

  // The whole history to show, with a query for `state`.
  Tokens Show(darkroom::Cell state) const;
  // The same without what the last ShowNew has shown, for a model with a cache;
  // or all of it, with *forget = true, if the cache must be cleared first.
  // Compressed only.
  Tokens ShowNew(darkroom::Cell state, bool* forget);

  // Appends a transition after an action.
  void Add(const Transition& transition);
  // Compressed: this region becomes the previous one, and a new one begins.
  void EndRegion();
  // Transitions of this region; plain: those shown.
  int64_t size() const { return static_cast<int64_t>(current_.size()); }

 private:
  const HistoryForm form_;
  std::vector<Transition> previous_;
  std::vector<Transition> current_;
  bool opened_ = false;  // ShowNew has shown this region's beginning
  size_t shown_ = 0;     // transitions of current_ that it has shown
};

// A history to play: a task, and the keys of its random numbers.
struct Trial {
  darkroom::Task task;
  uint64_t number = 0;  // of the task and stream, the same on any rank
};

struct TrialOptions {
  HistoryForm form;
  int64_t episodes = 0;
  uint64_t key = 0;  // RandomKey
  // Called after each episode with the fraction done, in [0, 1].
  std::function<void(double done)> progress = [](double) {};
  // Polled before each step of an episode; true: CANCELLED.
  std::function<bool()> stop = [] { return false; };
};

// Plays `episodes` consecutive episodes in each trial, without gradients.
// Samples actions from the softmax of the model's logits, keyed by trial,
// episode and step alone. A region ends if the model says so or it is full. The
// number of calls of the model depends only on the options. Returns [trials,
// episodes] returns, or INVALID_ARGUMENT if logits aren't finite, but only
// after all calls.
absl::StatusOr<std::vector<double>> PlayInContext(
    HistoryModel& model, absl::Span<const Trial> trials,
    const TrialOptions& options, UnitRunner& runner);

}  // namespace capstan::algorithm_distillation

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_ALGORITHM_DISTILLATION_IN_CONTEXT_H_
