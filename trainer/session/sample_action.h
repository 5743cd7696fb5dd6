// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SAMPLE_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_SAMPLE_ACTION_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trainer/session/due_action.h"
#include "trainer/session/session.h"

namespace capstan {

// Samples texts of the model after an evaluation, unless that ended the run.
class SampleAction : public DueAction {
 public:
  using DueAction::DueAction;
  const char* name() const override { return "sampling"; }
  bool Due() const override {
    const Session& session = run_.session;
    return capstan::Due(session.config.train().eval_every(),
                        session.state.step) &&
           session.GoesOn();
  }
  absl::Status Do() override {
    return run_.evaluator.Sample(
        absl::StrCat("after step ", run_.session.state.step));
  }
};

class LastSample : public SampleAction {
 public:
  using SampleAction::SampleAction;
  bool Due() const override { return !run_.session.stopping; }
  absl::Status Do() override { return run_.evaluator.Sample("after training"); }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SAMPLE_ACTION_H_
