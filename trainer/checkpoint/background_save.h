// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_BACKGROUND_SAVE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_BACKGROUND_SAVE_H_

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
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
// waits for the thread, unless CompleteAlone has given it up.
class BackgroundSave {
 public:
  BackgroundSave() = default;
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Takes the memory for copies of `parts`, so that the first save needn't wait
  // for it: in a thread, or, pinned for a GPU's, before it returns.
  void Prepare(const CheckpointParts& parts);

  // Begins a save, after Settle. Collective; all ranks return the same outcome.
  absl::Status Start(const SaveRequest& request, const CheckpointParts& parts);

  // Whether this rank has written its part, and Complete isn't called yet.
  bool written();
  // All ranks have written. Without effect unless written().
  void Complete();
  // For a run that ends with an error, perhaps of another rank: publishes the
  // save that is under way if this rank writes its part within `own_limit`,
  // which includes publishing, and the others theirs within `limit`. Gives up
  // what takes longer, as on a disk that hangs. No other call may follow. Not
  // collective.
  void CompleteAlone(
      std::chrono::milliseconds limit,
      std::chrono::milliseconds own_limit = std::chrono::seconds(10));
  // Returns this rank's error, as soon as there is one: "PATH can't be written:
  // ..".
  absl::Status status();

  // Call before the parts change: a GPU's copies may still read them.
  void BeforeChange() { shared_->snapshot.BeforeChange(); }

  // Waits until the save that is under way, if any, is complete or has failed.
  // Collective; all ranks return the same outcome.
  absl::Status Settle(ProcessGroup& group);
  // Whether a thread of this rank is at work on a save.
  bool busy();

 private:
  // The save that is under way.
  struct Save {
    SaveRequest request;
    Manifest manifest;  // ManifestFrame; rank 0's
    int rank = 0;
    int world_size = 1;
    bool completing = false;
  };

  // What the thread works on. The thread, and so this, may outlive the object.
  struct Shared {
    absl::optional<Save> save;
    Snapshot snapshot;
  };

  absl::Status StartAfter(SaveRequest request, const CheckpointParts& parts);
  absl::Status SettleTogether(ProcessGroup& group);
  // `work` may use shared_, not this.
  void Begin(std::function<absl::Status(Shared*)> work);
  // Waits for the thread's work.
  absl::Status Await();
  // Like Await, but gives up at `deadline` and then returns false.
  bool AwaitUntil(std::chrono::steady_clock::time_point deadline);

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  // The main thread's view of shared_->save, which no work changes.
  absl::optional<Save>& save_ = shared_->save;
  absl::Status status_;
  std::future<absl::Status> work_;
  std::thread thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_BACKGROUND_SAVE_H_
