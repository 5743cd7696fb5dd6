// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_EVALUATE_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_EVALUATE_ACTION_H_

#include "absl/status/status.h"
#include "trainer/session/due_action.h"
#include "trainer/session/session.h"

namespace capstan {

// Evaluator::CatchUp. It has a name of its own because it is usually a no-op,
// which must not train the hang limit of evaluations.
class CatchUpAction : public DueAction {
 public:
  using DueAction::DueAction;
  const char* name() const override { return "catching up"; }
  bool Due() const override { return !run_.session.stopping; }
  absl::Status Do() override { return run_.evaluator.CatchUp(); }
};

// Evaluates every train.eval_every steps.
class EvaluateAction : public DueAction {
 public:
  using DueAction::DueAction;
  const char* name() const override { return "evaluation"; }
  bool Scheduled() const override {
    const Session& session = run_.session;
    return capstan::Due(session.config.train().eval_every(),
                        session.state.step);
  }
  bool Due() const override { return Scheduled() && !run_.session.stopping; }
  absl::Status Do() override { return run_.evaluator.Evaluate(); }
};

class LastEvaluation : public EvaluateAction {
 public:
  using EvaluateAction::EvaluateAction;
  bool Due() const override { return !run_.session.stopping; }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVALUATE_ACTION_H_
