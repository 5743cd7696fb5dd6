// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_MIRROR_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_MIRROR_ACTION_H_

#include "absl/status/status.h"
#include "base/status.h"
#include "trainer/session/due_action.h"
#include "trainer/session/session.h"

namespace capstan {

// Mirrors the state every train.mirror_every steps, even after a signal.
class MirrorAction : public DueAction {
 public:
  using DueAction::DueAction;
  bool Scheduled() const override { return run_.checkpoints.MirrorDue(); }
  bool Due() const override { return Scheduled(); }
  absl::Status Do() override { return run_.checkpoints.Mirror(); }
};

// Mirrors again after an evaluation, which a restart would repeat otherwise.
// First completes the best checkpoint that the evaluation may have begun.
class MirrorAgainAction : public DueAction {
 public:
  using DueAction::DueAction;
  const char* name() const override { return "saving the best"; }
  bool Due() const override {
    const Session& session = run_.session;
    return run_.checkpoints.MirrorDue() &&
           capstan::Due(session.config.train().eval_every(),
                        session.state.step) &&
           !session.stopping;
  }
  absl::Status Do() override {
    Session& session = run_.session;
    if (KeepsBest(session.config.train())) {
      CAPSTAN_RETURN_IF_ERROR(session.background_save.Settle(*session.group));
    }
    return run_.checkpoints.Mirror(/*again=*/true);
  }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MIRROR_ACTION_H_
