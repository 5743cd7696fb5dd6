// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_BACKGROUND_SAVE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_BACKGROUND_SAVE_H_

#include <functional>
#include <future>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/snapshot.h"

namespace capstan {

// Saves while training goes on. Each rank copies what it owns, and a thread of
// its own writes the copy; the thread takes part in no collective. When all
// have written, which the ranks tell each other with the sums of their steps
// (written(), Complete()), a thread of rank 0 publishes the checkpoint: until
// then, as after a kill, the checkpoint before is the newest.
//
// One save is under way at a time. One thread calls all this; the destructor
// waits for the threads.
class BackgroundSave {
 public:
  // Takes the memory for copies of `parts` in a thread, so that the first save
  // needn't wait for it.
  void Prepare(const CheckpointParts& parts);

  // Begins a save, after Settle. Collective; all ranks return the same outcome.
  absl::Status Start(const SaveRequest& request, const CheckpointParts& parts);

  // Whether this rank has written its part, and Complete isn't called yet.
  bool written();
  // All ranks have written. Without effect unless written().
  void Complete();
  // This rank's error, as soon as there is one: "PATH can't be written: ..".
  absl::Status status();

  // Call before the parts change: a GPU's copies may still read them.
  void BeforeChange() { snapshot_.BeforeChange(); }

  // Waits until the save that is under way, if any, is complete or has failed.
  // Collective; all ranks return the same outcome.
  absl::Status Settle(ProcessGroup& group);
  // Whether a thread of this rank is at work on a save.
  bool busy();

 private:
  // Of the save that is under way.
  struct Save {
    SaveRequest request;
    Manifest manifest;  // ManifestFrame; rank 0's
    int rank = 0;
    int world_size = 1;
    bool completing = false;
  };

  absl::Status StartAfter(const SaveRequest& request,
                          const CheckpointParts& parts);
  absl::Status SettleTogether(ProcessGroup& group);
  void Begin(std::function<absl::Status()> work);
  // Waits for the thread's work.
  absl::Status Await();

  absl::optional<Save> save_;
  absl::Status status_;
  Snapshot snapshot_;
  std::future<absl::Status> work_;  // last: its destructor waits
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_BACKGROUND_SAVE_H_
