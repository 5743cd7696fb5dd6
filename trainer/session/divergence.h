// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_
#define CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/session/session.h"
#include "trainer/session/step_records.h"

namespace capstan {

// Ends a run whose weights or optimizer state are no longer finite, or have
// overflowed otherwise (NonFiniteTensor), and keeps them from being saved.
// Collective; all ranks get the same error, and the run's summary says that it
// failed.
class Divergence {
 public:
  Divergence(Session* session, StepRecords* records)
      : session_(*session), records_(*records) {}

  // At the start: of the initial weights, or the checkpoint's.
  absl::Status CheckStart();
  // Before the weights are saved.
  absl::Status CheckFinite();
  // `finite`: loss and gradients of the step were. Else the step was skipped,
  // and where that goes on the weights are looked at, and then the run ends, if
  // no smaller loss scale will help (`at_minimum`).
  absl::Status AfterStep(bool finite, bool at_minimum);
  // Where the last steps have led nowhere.
  absl::Status CheckEnd();

  // Whether steps are being skipped that no smaller loss scale will help, so
  // that a checkpoint of these weights must not replace an older one yet.
  bool AwaitsGoodStep() const;

 private:
  absl::StatusOr<absl::optional<std::string>> FirstNonFinite();
  absl::Status CheckFrozen();
  absl::Status Fail(const absl::Status& error);

  Session& session_;
  StepRecords& records_;
  int64_t skipped_in_a_row_ = 0;
  int64_t finite_step_ = -1;  // after which the weights were seen to be finite
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_
