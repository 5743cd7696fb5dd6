// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_

#include "absl/status/status.h"
#include "trainer/data/data_order.h"
#include "trainer/session/divergence.h"
#include "trainer/session/session.h"

namespace capstan {

// What a run saves and restores. Collective; all ranks get the same outcome.
class RunCheckpoints {
 public:
  RunCheckpoints(Session* session, Divergence* divergence)
      : session_(*session), divergence_(*divergence) {}

  // Fills session->state, and the weights and the optimizer's state from the
  // newest checkpoint if the run is to resume from one. `order`: of its
  // training data. An error may be of this rank alone.
  absl::Status Restore(const DataOrder& order);
  // A checkpoint of the step that the run has come to, unless there is one or
  // the weights are about to be given up.
  absl::Status Save();
  // With keep_best: the weights of the best evaluation, if they aren't these.
  absl::Status RestoreBest();
  // OUTPUT/final: weights, tokenizer, config and model card.
  absl::Status SaveFinal();
  // That folder to the hub_upload of the config. This rank's alone. On an error
  // the folder is whole, and the error says how to try again.
  absl::Status UploadFinal();

 private:
  Session& session_;
  Divergence& divergence_;
  int64_t saved_step_ = -1;  // the last
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
