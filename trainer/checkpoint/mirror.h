// SPDX-License-Identifier: Apache-2.0
//
// A copy of the run's state in memory that outlives the ranks, for those that
// the launcher starts after a death: they go on from the last step, not from
// the last checkpoint.
//
// Each rank copies what it owns, as it would save it, into one of its files of
// RankInfo::mirror_fds, in turn, so that a death in the midst of a copy leaves
// the copy before. A file ("image"):
//
//   header   page 0: whose copy of which step, and whether it is whole
//   layout   the manifest that a checkpoint would have, and where each range is
//   data     the ranges, as PieceLayout lays them
//
// The images of all ranks of one step are read as a checkpoint is: by any
// strategy on any number of ranks. Images are only read by processes that the
// launchers of one run have forked from themselves, as the ranks that wrote
// them: they have no format versions and no checksums of their data.
//
// On several hosts an image also travels to the next host (mirror_link.h),
// which holds it in case that its own host is lost.
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

// One of a run's copies; equal for the images that its ranks make together.
struct MirrorKey {
  int restart = -1;       // RankInfo::restart, the same on all ranks
  int64_t sequence = -1;  // copies that each rank had made since

  bool operator<(const MirrorKey& other) const {
    return std::tie(restart, sequence) <
           std::tie(other.restart, other.sequence);
  }
  bool operator==(const MirrorKey& other) const {
    return restart == other.restart && sequence == other.sequence;
  }
};

// What a whole image is, by its header.
struct MirrorImage {
  MirrorKey key;
  int rank = 0;
  int world_size = 0;
};

// Unset if the file has no whole image.
absl::optional<MirrorImage> MirrorImageIn(int fd);

// Reads bytes of an image, wherever it is. Copies may share a connection: one
// thread at a time.
using ReadMirror =
    std::function<absl::Status(int64_t offset, int64_t bytes, char* out)>;
// `fd` must stay open.
ReadMirror ReadMirrorIn(int fd);

// A whole image that can be read.
struct FoundMirror {
  MirrorImage image;
  ReadMirror read;
};

// The whole images in these files, which must stay open.
std::vector<FoundMirror> MirrorsIn(const std::vector<int>& fds);

// A step's images of all ranks.
struct MirroredStep {
  MirrorKey key;
  TrainState state;
  std::vector<ReadMirror> images;  // by rank
};

// The newest step of which all ranks' images are among `found`; of several of
// one rank the first is read. Those made by another number of ranks don't
// count. Unset if there is none, or its train state can't be read.
absl::optional<MirroredStep> NewestMirroredStep(
    const std::vector<FoundMirror>& found);
// The same among these files.
absl::optional<MirroredStep> NewestMirroredStep(const std::vector<int>& fds);

// The restart number for new images: at least `restart`, and above that of any
// image in `found`, which the new ones must outrank: the launchers' own counts
// may fall, as the host that had the highest may be the one that is lost.
int RestartAfter(const std::vector<FoundMirror>& found, int restart);

// As LoadCheckpoint. `step`: NewestMirroredStep's, on each rank. `touched`, if
// not null: whether the state may have been changed, on any rank. Collective.
absl::StatusOr<TrainState> LoadMirroredStep(const MirroredStep& step,
                                            const CheckpointParts& parts,
                                            bool* touched = nullptr);

// What `step`'s run has read (RunIdentity); empty if it doesn't say.
RunIdentity IdentityOf(const MirroredStep& step);

// What LoadMirrorOrCheckpoint has loaded.
struct LoadedNewest {
  bool from_mirror = false;
  absl::Status mirror;  // why not, if there is a step but it can't be read
  Resumed resumed;      // of the mirror: its folder is empty
};

// `step`, if it is set and can be read, or else as LoadNewestCheckpoint. An
// error, on all ranks, if the step has been read in part and there is no
// checkpoint: a run from the beginning would have some of its weights.
// Collective.
absl::StatusOr<LoadedNewest> LoadMirrorOrCheckpoint(
    const absl::optional<MirroredStep>& step, const std::string& output_dir,
    const CheckpointParts& parts);

// Makes a mirror's file hold `bytes` bytes without growing later; never
// shortens it. RESOURCE_EXHAUSTED: no memory.
absl::Status AllocateMirror(int fd, int64_t bytes);
// Gives its memory back, unless it has an image of `source`, which a restart
// may go on from. Nobody may have the file mapped.
void FreeMirror(int fd, const absl::optional<MirrorKey>& source);
// Bytes of memory that AllocateMirror would take.
int64_t MirrorBytesMissing(int fd, int64_t bytes);

// One rank's images. One thread.
class Mirror {
 public:
  // An image that Copy has made, which stays as it is until the copy after the
  // next, or for as long as Send says.
  struct Copied {
    MirrorKey key;
    const char* memory = nullptr;
    int64_t bytes = 0;
  };

  // `fds`: this rank's, two or more. `source`: the step that the run goes on
  // from, whose images stay until a newer step is whole on all ranks; unset:
  // none. `peers`: whether a step is whole only once PeersHave says so; needs
  // three files.
  Mirror(std::vector<int> fds, int restart,
         const absl::optional<MirroredStep>& source, bool peers = false);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Bytes of one image.
  int64_t ImageBytes(const CheckpointParts& parts) const;
  // Bytes of memory that the images will take beyond what they have.
  int64_t BytesToAllocate(const CheckpointParts& parts) const;
  // Allocates them, so that Copy can't fail. RESOURCE_EXHAUSTED: no memory.
  absl::Status Allocate(const CheckpointParts& parts);

  // Copies the state after a step. All ranks must call it equally often, and
  // between two calls pass a collective. Call Allocate first. Unset if the
  // train state doesn't fit, and there is no copy; the same on all ranks.
  absl::optional<Copied> Copy(const TrainState& state,
                              const CheckpointParts& parts);

  // With peers: the last copy is on its way to a peer, and stays as it is.
  void Sending() { sent_ = last_; }
  // All ranks' peers have the copy that was on its way: it stays, in the place
  // of the one before, until they have a newer one.
  void PeersHave();

 private:
  struct Image {
    int fd = -1;
    char* memory = nullptr;  // mapped
    int64_t bytes = 0;
    std::string layout;    // what Copy has written there
    int64_t sequence = 0;  // of the copy in it; 0: none of this Mirror's
  };

  absl::Status Map(int64_t bytes, Image* image);
  // Where the next copy goes.
  int Next() const;

  std::vector<Image> images_;
  const int restart_;
  const bool peers_;
  // Of images_, or -1: what must stay, what is being sent, the last copy.
  int kept_ = -1;
  int sent_ = -1;
  int last_ = -1;
  int64_t sequence_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_
