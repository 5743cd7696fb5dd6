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

namespace capstan {
namespace algorithm_distillation {

using Transition = std::array<uint8_t, kHistoryColumns>;

// Tokens of one history, as a row of HistoryInput.
struct Tokens {
  std::vector<Transition> transitions;
  std::vector<HistoryToken> kinds;

  void Add(HistoryToken kind, const Transition& transition = {});
  int64_t size() const { return static_cast<int64_t>(kinds.size()); }
};

// What a model is shown of a history that grows as the model acts. Each history
// is on its own: that another closes a region changes nothing here.
class Memory {
 public:
  explicit Memory(const HistoryForm& form) : form_(form) {}

  // The whole history as it is to be shown, `state` being asked for.
  Tokens Show(darkroom::Cell state) const;
  // The same without what the last ShowNew has shown, for a model with a cache;
  // or all of it where the cache must forget first: then *forget is true.
  // Compressed only.
  Tokens ShowNew(darkroom::Cell state, bool* forget);

  // After an action.
  void Add(const Transition& transition);
  // Compressed: this region becomes the one before, and a new one begins.
  void EndRegion();
  // Transitions of this region; plain: those that are shown.
  int64_t size() const { return static_cast<int64_t>(current_.size()); }

 private:
  const HistoryForm form_;
  std::vector<Transition> previous_;
  std::vector<Transition> current_;
  bool opened_ = false;  // ShowNew has shown this region's beginning
  size_t shown_ = 0;     // transitions of current_ that it has shown
};

// One history to be made: a task, and what its random numbers hang on.
struct Trial {
  darkroom::Task task;
  uint64_t number = 0;  // of the task and stream, the same on any rank
};

struct TrialOptions {
  HistoryForm form;
  int64_t episodes = 0;
  uint64_t key = 0;  // RandomKey
  // Told the part that is done, in [0, 1], after each episode.
  std::function<void(double done)> progress = [](double) {};
  // Asked before each step of an episode; true: CANCELLED.
  std::function<bool()> stop = [] { return false; };
};

// Plays `episodes` episodes in each trial, one after the other, without
// gradients. An action is drawn from the softmax of the model's logits, by a
// number of its trial, episode and step alone. Where the model says that a
// region ends, or the region is full, it does. Calls the model equally often
// whatever happens: options alone decide. Returns [trials, episodes] returns.
// INVALID_ARGUMENT if logits aren't finite; all calls are made even so.
absl::StatusOr<std::vector<double>> PlayInContext(
    HistoryModel& model, absl::Span<const Trial> trials,
    const TrialOptions& options, UnitRunner& runner);

}  // namespace algorithm_distillation
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_ALGORITHM_DISTILLATION_IN_CONTEXT_H_
