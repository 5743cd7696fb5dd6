// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_FINAL_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_FINAL_ACTION_H_

#include "absl/status/status.h"
#include "trainer/session/due_action.h"

namespace capstan {

// The end of a run that no signal has stopped.
class EndAction : public DueAction {
 public:
  using DueAction::DueAction;
  bool Due() const override { return !run_.session.stopping; }
};

// Runs before the last save.
class EndCheck : public EndAction {
 public:
  using EndAction::EndAction;
  absl::Status Do() override { return run_.divergence.CheckEnd(); }
};

// Runs after it, and restores the weights that final/ gets.
class BestWeightsAction : public EndAction {
 public:
  using EndAction::EndAction;
  absl::Status Do() override { return run_.checkpoints.RestoreBest(); }
};

class FinalAction : public EndAction {
 public:
  using EndAction::EndAction;
  absl::Status Do() override { return run_.checkpoints.SaveFinal(); }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_FINAL_ACTION_H_
