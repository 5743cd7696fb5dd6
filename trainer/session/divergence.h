// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_
#define CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_

#include <c10/core/ScalarType.h>

#include <deque>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/session/replicas.h"
#include "trainer/session/session.h"
#include "trainer/session/step_records.h"

namespace capstan {

// Ends a run whose weights or state are no longer finite or have otherwise
// overflowed (NonFiniteTensor), or differ between ranks (Replicas), and
// prevents saving them. Collective; all ranks get the same error, and the run's
// summary says failed.
class Divergence {
 public:
  Divergence(Session* session, StepRecords* records)
      : session_(*session), records_(*records) {}

  // At the start: checks the initial or restored weights.
  absl::Status CheckStart();
  // Call before saving weights.
  absl::Status CheckFinite();
  absl::Status CheckReplicas();
  // Call before writing weights in `dtype`: fails if that can't hold them.
  absl::Status CheckFits(c10::ScalarType dtype);
  // `finite` says whether the step's loss and gradients were finite. Otherwise
  // the step was skipped; if that continues and no smaller loss scale can help
  // (`at_minimum`), checks the weights and finally ends the run.
  absl::Status AfterStep(bool finite, bool at_minimum);
  // Records a step's loss, which becomes the state's last_loss.
  void TakeLoss(double loss);
  // Sets what wasn't finite in a step, "in step 7 the loss of .. is nan", for
  // errors.
  void set_cause(std::string cause) { cause_ = std::move(cause); }
  // Tells that other weights were loaded.
  void WeightsReplaced() { finite_step_ = session_.state.step; }
  // At the end: fails if the last steps were being skipped.
  absl::Status CheckEnd();
  // After the run's end and last save: fails if the last losses show that it
  // diverged with finite numbers. Not collective, since all ranks know the same
  // losses.
  absl::Status CheckLosses() const;

  // Whether the last steps were skipped and no smaller loss scale can help, so
  // that a checkpoint of these weights must not replace an older one yet.
  bool AwaitsGoodStep() const;

 private:
  struct Bad {
    std::string text;        // "'lm_head'", "exp_avg of 'lm_head'"
    bool strategys = false;  // state of its own
  };
  absl::StatusOr<absl::optional<Bad>> FirstNonFinite();
  absl::Status CheckFrozen();
  // Completes earlier saves, and returns what remains of the run: "; F is the
  // newest good checkpoint".
  absl::StatusOr<std::string> NewestGood();
  absl::Status Fail(const absl::Status& error);
  // "capstan.adamw with learning_rate 0.1".
  std::string OptimizerText() const;

  Session& session_;
  StepRecords& records_;
  Replicas replicas_;
  std::string cause_;  // of the latest non-finite step; "": unknown
  int64_t skipped_in_a_row_ = 0;
  std::deque<double> last_losses_;
  int64_t finite_step_ = -1;  // after which weights were last seen finite
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DIVERGENCE_H_
