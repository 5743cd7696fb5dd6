// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_
#define CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_

#include <c10/core/ScalarType.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/session/session.h"
#include "trainer/session/step_records.h"

namespace capstan {

// Ends a run whose weights or optimizer state are no longer finite or have
// otherwise overflowed (NonFiniteTensor), and keeps them from being saved.
// Collective; all ranks get the same error, and the run's summary says failed.
class Divergence {
 public:
  Divergence(Session* session, StepRecords* records)
      : session_(*session), records_(*records) {}

  // At the start: checks the initial or restored weights.
  absl::Status CheckStart();
  // Call before saving weights.
  absl::Status CheckFinite();
  // Call before writing weights in `dtype`: fails if that can't hold them.
  absl::Status CheckFits(c10::ScalarType dtype);
  // `finite`: the step's loss and gradients were. Otherwise the step was
  // skipped; if that continues and no smaller loss scale can help
  // (`at_minimum`), checks the weights and finally ends the run.
  absl::Status AfterStep(bool finite, bool at_minimum);
  // What wasn't finite in a step, "in step 7 the loss of .. is nan", for
  // errors.
  void set_cause(std::string cause) { cause_ = std::move(cause); }
  // Other weights were loaded.
  void WeightsReplaced() { finite_step_ = session_.state.step; }
  // At the end: fails if the last steps were being skipped.
  absl::Status CheckEnd();

  // Whether steps are being skipped that no smaller loss scale can rescue, so
  // that a checkpoint of these weights must not replace an older one yet.
  bool AwaitsGoodStep() const;

 private:
  absl::StatusOr<absl::optional<std::string>> FirstNonFinite();
  absl::Status CheckFrozen();
  absl::Status Fail(const absl::Status& error);

  Session& session_;
  StepRecords& records_;
  std::string cause_;  // of the latest non-finite step; "": unknown
  int64_t skipped_in_a_row_ = 0;
  int64_t finite_step_ = -1;  // after which weights were last seen finite
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_
