// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_PROFILE_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_PROFILE_ACTION_H_

#include "absl/status/status.h"
#include "trainer/session/due_action.h"

namespace capstan {

// Writes what the config's profile asks for: each rank's trace, and rank 0's
// table. Not collective.
class ProfileAction : public DueAction {
 public:
  using DueAction::DueAction;
  bool Due() const override { return run_.profiler != nullptr; }
  absl::Status Do() override;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_PROFILE_ACTION_H_
