// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DUE_ACTIONS_H_
#define CAPSTAN_TRAINER_SESSION_DUE_ACTIONS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "trainer/session/due_action.h"
#include "trainer/session/rank_run.h"

namespace capstan {

// What a run does besides steps, in order.
class DueActions {
 public:
  explicit DueActions(RankRun* run);

  // Before the first step.
  absl::Status AtStart() { return DoDue(at_start_); }
  // Whether any action is scheduled after the step just done.
  bool Scheduled() const;
  absl::Status AfterStep() { return DoDue(after_step_); }
  // After the last step, or a signal.
  absl::Status AtEnd() { return DoDue(at_end_); }
  // Writes each rank's own files at the end. Not collective: the ranks have yet
  // to agree on the outcome.
  absl::Status WriteOutput() { return DoDue(output_); }

 private:
  using List = std::vector<std::unique_ptr<DueAction>>;
  absl::Status DoDue(const List& actions) const;

  const RankRun& run_;
  const List at_start_, after_step_, at_end_, output_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DUE_ACTIONS_H_
