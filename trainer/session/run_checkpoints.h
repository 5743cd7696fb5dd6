// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/save.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/divergence.h"
#include "trainer/session/run_mirror.h"
#include "trainer/session/session.h"

namespace capstan {

// Saves and restores a run. Collective; all ranks get the same outcome.
class RunCheckpoints {
 public:
  RunCheckpoints(Session* session, Divergence* divergence)
      : session_(*session), divergence_(*divergence), mirror_(session) {}

  // Fills session->state and, if the run resumes or the launcher has started
  // its ranks anew, loads weights and optimizer state: from the mirror or the
  // newest checkpoint that is whole, whichever is newer. `order`: the training
  // data's.
  absl::Status Restore(const DataOrder& order);
  // Saves the current step, unless saved already or Divergence awaits a good
  // step; in the background, if steps follow.
  absl::Status Save();
  // The same, and waits until it is on disk.
  absl::Status SaveLast();
  // As RunMirror's.
  void RanksMayLeave() { mirror_.RanksMayLeave(); }
  bool MirrorDue() const { return mirror_.Due(); }
  absl::Status Mirror(bool again = false);
  // After a loss spike: weights, optimizer state and number of updates become
  // those of the run's last checkpoint, while steps and data position go on, as
  // if the updates since had been skipped. Without a checkpoint there is just a
  // note. FAILED_PRECONDITION if it is the fourth time from the same one.
  absl::Status GoBack();
  // With keep_best: restores the best evaluation's weights, unless current.
  absl::Status RestoreBest();
  // Writes OUTPUT/final: weights, tokenizer, config and model card.
  absl::Status SaveFinal();
  // Whether the config asks for an upload that hasn't succeeded yet, as after a
  // death in its midst.
  bool AwaitsUpload() const;
  // Uploads that folder to the config's hub_upload, from this rank alone. On
  // error the folder is intact, and the error says how to retry.
  absl::Status UploadFinal();

 private:
  absl::StatusOr<TrainState> LoadNewest();
  // The newest mirrored step, if it is newer than any checkpoint; unset if the
  // ranks don't all see it.
  absl::StatusOr<absl::optional<MirroredStep>> FindMirrored();
  // A note if the disk has no room for a checkpoint.
  absl::Status WarnOfRoom();
  absl::Status SaveStep(bool background);
  // Whether there is memory for a copy of the state; decided once. Collective.
  absl::StatusOr<bool> InBackground();
  void RememberScale();

  Session& session_;
  Divergence& divergence_;
  int64_t saved_step_ = -1;    // the latest
  std::set<int64_t> damaged_;  // steps of checkpoints; rank 0's
  absl::optional<bool> in_background_;
  absl::optional<MirroredStep> source_;  // what the run goes on from
  RunMirror mirror_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
