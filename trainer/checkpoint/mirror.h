// SPDX-License-Identifier: Apache-2.0
//
// A copy of the run's state in memory that outlives the ranks, for those that
// the launcher starts after a death: they go on from the last step, not from
// the last checkpoint.
//
// Each rank copies what it owns, as it would save it, into its files of
// RankInfo::mirror_fds in turn, so that a death during a copy leaves the
// previous one. A GPU's state is copied beside the steps that follow. A file
// ("image"):
//
//   header   page 0: whose copy of which step, and whether it is whole
//   layout   the manifest that a checkpoint would have
//   data     the ranges, as PieceLayout lays them
//
// All ranks' images of one step are read like a checkpoint: by any strategy on
// any number of ranks. Only processes forked by the launchers of the same run
// read them, so images have no format version and no checksums of their data.
//
// With several hosts, each image is also sent to the next host (mirror_link.h),
// which holds it in case the image's own host is lost.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/snapshot.h"

namespace capstan {

// Identifies one of a run's copies: equal for the images that its ranks make
// together.
struct MirrorKey {
  int restart = -1;       // RankInfo::restart, the same on all ranks
  int64_t sequence = -1;  // number of the copy since that restart

  bool operator<(const MirrorKey& other) const {
    return std::tie(restart, sequence) <
           std::tie(other.restart, other.sequence);
  }
  bool operator==(const MirrorKey& other) const {
    return restart == other.restart && sequence == other.sequence;
  }
};

// What a complete image's header says.
struct MirrorImage {
  MirrorKey key;
  int rank = 0;
  int world_size = 0;
};

// Returns the image in a file; unset if there is no complete one.
absl::optional<MirrorImage> MirrorImageIn(int fd);

// Reads bytes of an image, wherever it is. Copies of a function may share a
// connection: only one thread may call them at a time.
using ReadMirror =
    std::function<absl::Status(int64_t offset, int64_t bytes, char* out)>;
// `fd` must stay open.
ReadMirror ReadMirrorIn(int fd);

// A complete image.
struct FoundMirror {
  MirrorImage image;
  ReadMirror read;
  bool here = true;  // else on another host
};

// Returns the complete images in these files, which must stay open.
std::vector<FoundMirror> MirrorsIn(const std::vector<int>& fds);

// A step's images of all ranks.
struct MirroredStep {
  MirrorKey key;
  TrainState state;
  std::vector<ReadMirror> images;  // by rank
  size_t nearest = 0;              // an image that is on this host if one is
};

// Returns the newest step of which all ranks' images are in `found`; if there
// are several images of one rank, the first. Images of one step must have been
// made by the same number of ranks. Unset if there is no such step, or its
// train state can't be read.
absl::optional<MirroredStep> NewestMirroredStep(
    const std::vector<FoundMirror>& found);

// Returns the restart number for new images: at least `restart`, and greater
// than that of any image in `found`, as new images must outrank these. The
// launchers' own counts may fall, since the host with the highest may be lost.
int RestartAfter(const std::vector<FoundMirror>& found, int restart);

// Does what LoadCheckpoint does, from `step`, NewestMirroredStep's on each
// rank. Each rank reads the layouts of its share of the images, which the ranks
// tell each other, and then, its own first, those images that have what it
// loads: under fsdp and zero2 only its own if there are as many ranks as
// before, under ddp all, as each rank holds all and has copied a part. Sets
// *touched (may be null) to whether the state may have been changed on any
// rank. Collective.
absl::StatusOr<TrainState> LoadMirroredStep(const MirroredStep& step,
                                            const CheckpointParts& parts,
                                            bool* touched = nullptr);

// Returns the identity of `step`'s run; empty if it can't be read.
RunIdentity IdentityOf(const MirroredStep& step);

// LoadMirrorOrCheckpoint's result.
struct LoadedNewest {
  bool from_mirror = false;
  absl::Status mirror;  // the error if there is a step that can't be read
  Resumed resumed;      // from a mirror: without a folder
};

// Loads `step` if it is set and can be read, else what LoadNewestCheckpoint
// loads. If the step was read in part and there is no checkpoint, returns an
// error on all ranks: a run from the beginning would have some of the step's
// weights. Collective.
absl::StatusOr<LoadedNewest> LoadMirrorOrCheckpoint(
    const absl::optional<MirroredStep>& step, const std::string& output_dir,
    const CheckpointParts& parts);

// Allocates memory for `bytes` bytes of a mirror's file; never shortens it.
// RESOURCE_EXHAUSTED: there is no memory.
absl::Status AllocateMirror(int fd, int64_t bytes);
// The same, unless that takes more than a quarter of the memory that is left: a
// size may come from another host.
absl::Status GrowMirror(int fd, int64_t bytes);
// Frees the file's memory, unless it has an image of `source`, which a restart
// may continue from. No process may have the file mapped.
void FreeMirror(int fd, const absl::optional<MirrorKey>& source);
// Returns the bytes of memory that AllocateMirror would take.
int64_t MirrorBytesMissing(int fd, int64_t bytes);

// One rank's images. One thread.
class Mirror {
 public:
  // A complete image. It doesn't change until the second copy after
  // it or, if it is being sent, until PeersHave.
  struct Copied {
    MirrorKey key;
    const char* memory = nullptr;
    int64_t bytes = 0;
  };

  // `fds` are this rank's, two or more. The images of `source`, the step that
  // the run continues from, if any, are kept until a newer step is complete on
  // all ranks: with `peers`, which needs three files, only once PeersHave is
  // called.
  Mirror(std::vector<int> fds, int restart,
         const absl::optional<MirroredStep>& source, bool peers = false);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Returns the bytes of one image.
  int64_t ImageBytes(const CheckpointParts& parts) const;
  // Returns the bytes of memory that the images lack.
  int64_t BytesToAllocate(const CheckpointParts& parts) const;
  // Allocates these, so that Copy can't fail unless plugins' states grow far.
  // RESOURCE_EXHAUSTED: there is no memory.
  absl::Status Allocate(const CheckpointParts& parts);

  // Copies the state after a step. All ranks must call it equally often, with a
  // collective between two calls. Call Allocate first. RESOURCE_EXHAUSTED, and
  // no copy, if the train state doesn't fit, on all ranks alike, or if there is
  // no memory for a plugin's state that has grown: a step that one rank hasn't
  // copied isn't mirrored.
  absl::StatusOr<Copied> Copy(const TrainState& state,
                              const CheckpointParts& parts);

  // The same without blocking the host, in three calls. Begin begins to copy
  // what `step` has left in the parts; call it if MayBegin. SetState passes the
  // train state after it, as text, which may be known later. Complete makes the
  // image complete once both are there, and returns it; else it is unset. Until
  // then a restart goes on from the image before, which the next Begin
  // overwrites: so all ranks must have completed theirs.
  absl::Status Begin(int64_t step, const CheckpointParts& parts);
  bool awaits_state() const { return begun_.index >= 0 && begun_.text.empty(); }
  void SetState(std::string text) { begun_.text = std::move(text); }
  // With `wait` it blocks until the copy is there.
  absl::StatusOr<absl::optional<Copied>> Complete(bool wait = false);
  // Whether a copy has begun, and isn't complete.
  bool pending() const { return begun_.index >= 0; }
  // Tells that before `step` ended no rank had one that was pending.
  void NonePending(int64_t step) {
    if (step > begun_.step) may_begin_ = true;
  }
  bool MayBegin() const { return may_begin_; }
  // Call before the parts change (PieceCopies::BeforeChange).
  void BeforeChange() { copies_.BeforeChange(); }
  // Gives up what is pending; on all ranks.
  void Drop();

  // With peers: tells that the last copy is being sent, and mustn't change.
  void Sending() { sent_ = last_; }
  // Tells that all ranks' peers have the copy that was being sent. It is kept,
  // in place of the one before, until they have a newer one.
  void PeersHave();

 private:
  struct Image {
    int fd = -1;
    char* memory = nullptr;  // mapped
    int64_t bytes = 0;
    std::shared_ptr<void> pinned;  // PinMemory, if the state is on a GPU
    std::string layout;            // written by Copy
    std::string lengths;           // of plugins' states in it
    int64_t sequence = 0;  // of the copy in it; 0: this Mirror made none
  };

  // The copy that Begin has begun.
  struct Begun {
    int index = -1;     // of the image; -1: none is pending
    int64_t step = -1;  // stays
    int rank = 0;
    int world_size = 0;
    int64_t data_bytes = 0;
    std::string text;  // the train state; empty: not yet known
  };

  absl::Status Map(int64_t bytes, Image* image);
  void Pin(Image* image);
  absl::Status Grow(int64_t bytes, Image* image);
  // Returns the index of the image that the next copy goes to.
  int Next() const;
  // Gives up the copy that is pending.
  void GiveUp();

  std::vector<Image> images_;
  const int restart_;
  const bool peers_;
  bool pins_ = false;
  // Indices into images_, or -1: the image that must be kept, the one that is
  // being sent, and the last copy.
  int kept_ = -1;
  int sent_ = -1;
  int last_ = -1;
  int64_t sequence_ = 0;
  Begun begun_;
  bool may_begin_ = true;
  PieceCopies copies_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_
