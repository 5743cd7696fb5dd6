// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_

#include <cstdint>
#include <functional>
#include <set>
#include <utility>

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

// How many checkpoints a run keeps: train.keep_checkpoints, or its default.
int KeptCheckpoints(const Train& train);

// Saves and restores a run. Collective; all ranks get the same outcome.
class RunCheckpoints {
 public:
  RunCheckpoints(Session* session, Divergence* divergence)
      : session_(*session), divergence_(*divergence), mirror_(session) {}

  // What is done before the state is copied into a checkpoint, a mirror or
  // final/; an error keeps it from being copied. Collective.
  void SetBeforeCopy(std::function<absl::Status()> before_copy) {
    before_copy_ = std::move(before_copy);
  }

  // Fills session->state and, if the run resumes or the launcher has restarted
  // its ranks, loads weights and optimizer state from the mirror or the newest
  // complete checkpoint, whichever is newer. `order` is the training data's.
  absl::Status Restore(const DataOrder& order);
  // Saves the current step, unless it is saved already or Divergence awaits a
  // good step; in the background if more steps follow.
  absl::Status Save();
  // Like Save, but waits until the checkpoint is on disk.
  absl::Status SaveLast();
  // Makes sure that the step, which is complete and mirrored if steps are, is
  // where the run goes on once these ranks have left: waits until other hosts
  // have the mirror, or saves a checkpoint.
  absl::Status SaveToLeave();
  // Saves the step, which is complete, before the run ends with the error
  // `end`, after whose phase the ranks have agreed; returns that with what
  // there is to go on from.
  absl::Status SaveBefore(const absl::Status& end);
  // Fails if the run's folder, its lock or its metrics.jsonl was renamed or
  // deleted, so that another run may use the folder. If the old folder still
  // exists and no other run uses it, saves the step there first.
  absl::Status CheckFolder();
  // See RunMirror.
  void RanksMayLeave() { mirror_.RanksMayLeave(); }
  bool MirrorDue() const { return mirror_.Due(); }
  absl::Status Mirror(const MirrorHow& how);
  void CompleteMirror() { mirror_.Complete(); }
  // After a loss spike, restores weights, what state it has and the number of
  // updates from the run's last checkpoint, while steps and data position go
  // on, as if the updates since had been skipped. Without a checkpoint only
  // writes a note. FAILED_PRECONDITION if it is the fourth return to the same
  // checkpoint.
  absl::Status GoBack();
  // With keep_best: restores the best evaluation's weights, unless current.
  absl::Status RestoreBest();
  // Writes OUTPUT/final: weights, tokenizer, config and model card.
  absl::Status SaveFinal();
  // Whether the config asks for an upload that hasn't succeeded yet, for
  // example because the run died during it.
  bool AwaitsUpload() const;
  // Uploads that folder to the config's hub_upload, from this rank alone. On
  // error the folder is intact, and the error says how to retry.
  absl::Status UploadFinal();
  // The step of the newest checkpoint, or -1.
  int64_t saved_step() const { return saved_step_; }

 private:
  // Fills session_.identity.
  absl::Status Identify();
  absl::StatusOr<TrainState> LoadNewest();
  // Returns the newest mirrored step if it is newer than all checkpoints and
  // all ranks have it.
  absl::StatusOr<absl::optional<MirroredStep>> FindMirrored();
  // Tells what a strategy with local_steps() makes of the states of `then`
  // replicas.
  void NoteOtherReplicas(int then);
  // Warns if the disk has no room for a checkpoint.
  absl::Status WarnOfRoom();
  absl::Status SaveStep(bool background);
  // Rank 0's: whether the lines of the steps so far are written.
  absl::Status CheckLines(const std::string& output_dir) const;
  // Writes to `output_dir`. If that isn't session_.output_dir, because the
  // folder has moved, removes no older checkpoint.
  absl::Status WriteStep(bool background, const std::string& output_dir);
  // Checks on rank 0 that this is the run that saved `earlier`.
  absl::Status CheckIdentity(const TrainState& earlier, const DataOrder& order);
  // Whether there is memory for a copy of the state; decided once. Collective.
  absl::StatusOr<bool> InBackground();

  Session& session_;
  Divergence& divergence_;
  std::function<absl::Status()> before_copy_ = [] { return absl::OkStatus(); };
  int64_t saved_step_ = -1;    // the latest
  std::set<int64_t> damaged_;  // steps of checkpoints; rank 0's
  absl::optional<bool> in_background_;
  absl::optional<MirroredStep> source_;  // what the run goes on from
  RunMirror mirror_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_CHECKPOINTS_H_
