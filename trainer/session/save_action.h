// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SAVE_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_SAVE_ACTION_H_

#include "absl/status/status.h"
#include "trainer/session/due_action.h"
#include "trainer/session/session.h"

namespace capstan {

// Saves a checkpoint every train.save_every steps.
class SaveAction : public DueAction {
 public:
  using DueAction::DueAction;
  const char* name() const override { return "saving"; }
  bool Scheduled() const override {
    const Session& session = run_.session;
    return capstan::Due(session.config.train().save_every(),
                        session.state.step);
  }
  bool Due() const override { return Scheduled() && !run_.session.stopping; }
  absl::Status Do() override { return run_.checkpoints.Save(); }
};

// Saves before the first step: a mirrored run may have died while saving that
// step.
class FirstSave : public SaveAction {
 public:
  using SaveAction::SaveAction;
  bool Due() const override {
    const Session& session = run_.session;
    return session.GoesOn() && session.first_step > 0 && Scheduled();
  }
};

// Saves in the foreground at the end, even after a signal.
class LastSave : public DueAction {
 public:
  using DueAction::DueAction;
  const char* name() const override { return "the last save"; }
  bool Due() const override { return run_.session.state.step > 0; }
  absl::Status Do() override { return run_.checkpoints.SaveLast(); }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SAVE_ACTION_H_
