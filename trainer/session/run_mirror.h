// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_MIRROR_H_
#define CAPSTAN_TRAINER_SESSION_RUN_MIRROR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/mirror_link.h"
#include "trainer/session/session.h"

namespace capstan {

// How a step is mirrored.
struct MirrorHow {
  // The second copy after the same step, which isn't reported.
  bool again = false;
  // The mirror is whole when Copy returns, and all ranks call something
  // collective before the next; always on CPUs. Else Copy doesn't block.
  bool wait = false;
  // Whether session.state is the step's; if not, TrainStep passes it on once it
  // is (Mirror::SetState).
  bool concluded = true;
};

// A run's state in memory that outlives its ranks (checkpoint/mirror.h). On
// several hosts each rank also sends its images to the rank of the same number
// on the next host, and receives those of the previous host. Collective except
// for Due.
class RunMirror {
 public:
  explicit RunMirror(Session* session) : session_(*session) {}

  // Called first. Makes the ranks of several hosts serve their images to each
  // other.
  absl::Status Begin();
  // Returns the newest mirrored step, which may differ between ranks.
  absl::StatusOr<absl::optional<MirroredStep>> Find();
  // Called last, before training. `source` is the mirror from which the run
  // continues, if it does.
  absl::Status SetUp(const absl::optional<MirroredStep>& source);

  // Waits until the last step's mirror has arrived on the next host, too, for
  // some seconds. Returns whether all ranks' have. Collective.
  absl::StatusOr<bool> Settle();
  // Tells that ranks may leave from now on without being restarted. Not
  // collective.
  void RanksMayLeave();

  // Whether the state is to be mirrored after this step.
  bool Due() const;
  // Mirrors the state; with !wait not while the mirror before is on its way to
  // the host on some rank. Not collective on one host with !wait.
  absl::Status Copy(const MirrorHow& how);
  // Completes the mirror that has been begun, if its bytes are there; to be
  // called after each step. Blocks only with `wait`. Not collective.
  void Complete(bool wait = false);
  // Called before the weights go back to a checkpoint's: gives up a mirror of
  // those that are given up, and completes an earlier one, which some ranks
  // may have completed. May block. Collective.
  absl::Status BeforeGoingBack();

 private:
  // Returns the images in all ranks' files, this host's first.
  std::vector<FoundMirror> FoundByAll();
  int64_t Every() const;
  // Waits until all that has been sent has arrived, or takes too long.
  void AwaitSender() const;
  // Completes it on all ranks. Blocks. Collective.
  absl::Status CompleteOnAll();
  // Returns the files that hold a peer's images.
  std::vector<int> Held() const;
  // Checks that this host has the memory.
  absl::Status CheckMemory(int64_t held_bytes) const;
  absl::Status Allocate(int64_t held_bytes);
  // Notes that there is no mirror, because of this rank's error or, if that is
  // OK, of another's.
  void NoteNone(const absl::Status& mine, const char* others);
  void NoteSkipped();
  // Notes that a step isn't mirrored while the one before is under way.
  void NoteTooSoon();
  // Notes the first error of a copy.
  void NoteIfNot(const absl::Status& copied);
  // Counts an image that is complete, and sends it if it is to be sent.
  void SendWhole(const Mirror::Copied& image);

  Session& session_;
  std::vector<int> files_;  // this rank's; empty: there is no mirror
  int held_ = 0;            // the last of them hold a peer's images
  int restart_ = 0;         // of new images; the same on all ranks
  std::unique_ptr<MirrorServer> server_;  // null on one host
  std::vector<std::string> addresses_;    // of the servers, by rank; secret
  std::unique_ptr<MirrorSender> sender_;  // null on one host
  int64_t step_ = 0;                      // of the last copy
  bool sends_ = false;  // whether it is to be sent once it is complete
  int64_t sent_step_ = 0;
  bool told_ = false;
  bool told_too_soon_ = false;
  bool told_not_copied_ = false;
};

// Returns train.mirror_every, or its default.
int64_t MirrorEvery(const RunConfig& config, bool on_gpu);

// Returns RESOURCE_EXHAUSTED unless this host has `bytes` for each of its ranks
// in addition to what their steps have yet to allocate and a reserve.
absl::Status RoomInMemory(int64_t bytes, const RunPlan& plan);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_MIRROR_H_
