// SPDX-License-Identifier: Apache-2.0
//
// A copy of the run's state in memory that outlives the ranks, for those that
// the launcher starts after a death: they go on from the last step, not from
// the last checkpoint.
//
// Each rank copies what it owns, as it would save it, into its files of
// RankInfo::mirror_fds in turn, so that a death during a copy leaves the
// previous one. A file ("image"):
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
#include <string>
#include <tuple>
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
};

// Returns the complete images in these files, which must stay open.
std::vector<FoundMirror> MirrorsIn(const std::vector<int>& fds);

// A step's images of all ranks.
struct MirroredStep {
  MirrorKey key;
  TrainState state;
  std::vector<ReadMirror> images;  // by rank
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
// rank. Sets *touched (may be null) to whether the state may have been changed
// on any rank. Collective.
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
// Frees the file's memory, unless it has an image of `source`, which a restart
// may continue from. No process may have the file mapped.
void FreeMirror(int fd, const absl::optional<MirrorKey>& source);
// Returns the bytes of memory that AllocateMirror would take.
int64_t MirrorBytesMissing(int fd, int64_t bytes);

// One rank's images. One thread.
class Mirror {
 public:
  // An image that Copy has made. It doesn't change until the second copy after
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
  // Allocates these, so that Copy can't fail. RESOURCE_EXHAUSTED: there is no
  // memory.
  absl::Status Allocate(const CheckpointParts& parts);

  // Copies the state after a step. All ranks must call it equally often, with a
  // collective between two calls. Call Allocate first. Returns nothing if the
  // train state doesn't fit, and then makes no copy; the same on all ranks.
  absl::optional<Copied> Copy(const TrainState& state,
                              const CheckpointParts& parts);

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
    std::string layout;    // written by Copy
    int64_t sequence = 0;  // of the copy in it; 0: this Mirror made none
  };

  absl::Status Map(int64_t bytes, Image* image);
  // Returns the index of the image that the next copy goes to.
  int Next() const;

  std::vector<Image> images_;
  const int restart_;
  const bool peers_;
  // Indices into images_, or -1: the image that must be kept, the one that is
  // being sent, and the last copy.
  int kept_ = -1;
  int sent_ = -1;
  int last_ = -1;
  int64_t sequence_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_
