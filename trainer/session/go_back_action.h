// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_GO_BACK_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_GO_BACK_ACTION_H_

#include "absl/status/status.h"
#include "base/status.h"
#include "trainer/session/due_action.h"

namespace capstan {

// Returns to the last checkpoint after a loss spike (LossSpikes::GO_BACK). With
// deferred sums the step after the spike is concluded first, which may withdraw
// the request.
class GoBackAction : public DueAction {
 public:
  using DueAction::DueAction;
  const char* name() const override { return "going back"; }
  bool Due() const override { return run_.step.go_back(); }
  absl::Status Do() override {
    CAPSTAN_RETURN_IF_ERROR(run_.step.CatchUp());
    return run_.step.TakeGoBack() ? run_.checkpoints.GoBack()
                                  : absl::OkStatus();
  }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_GO_BACK_ACTION_H_
