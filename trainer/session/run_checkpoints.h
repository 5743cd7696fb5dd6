// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_

#include "absl/status/status.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/divergence.h"
#include "trainer/session/session.h"

namespace capstan {

// Saves and restores a run. Collective; all ranks get the same outcome.
class RunCheckpoints {
 public:
  RunCheckpoints(Session* session, Divergence* divergence)
      : session_(*session), divergence_(*divergence) {}

  // Fills session->state and, if the run resumes, loads weights and optimizer
  // state from its newest checkpoint. `order`: the training data's. An error
  // may be this rank's alone.
  absl::Status Restore(const DataOrder& order);
  // Saves the current step, unless saved already or Divergence awaits a good
  // step.
  absl::Status Save();
  // After a loss spike: weights, optimizer state and number of updates become
  // those of the run's last checkpoint, while steps and data position go on, as
  // if the updates since had been skipped. Without a checkpoint there is just a
  // note. FAILED_PRECONDITION if it is the fourth time from the same one.
  absl::Status GoBack();
  // With keep_best: restores the best evaluation's weights, unless current.
  absl::Status RestoreBest();
  // Writes OUTPUT/final: weights, tokenizer, config and model card.
  absl::Status SaveFinal();
  // Uploads that folder to the config's hub_upload, from this rank alone. On
  // error the folder is intact, and the error says how to retry.
  absl::Status UploadFinal();

 private:
  Session& session_;
  Divergence& divergence_;
  int64_t saved_step_ = -1;  // the latest
  // How often the run has gone back to the checkpoint of which step.
  int64_t back_to_ = -1;
  int times_back_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
