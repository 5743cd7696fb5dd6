// SPDX-License-Identifier: Apache-2.0
//
// A copy of the run's state in memory that outlives the ranks, for those that
// the launcher starts after a death: they go on from the last step, not from
// the last checkpoint.
//
// Each rank copies what it owns, as it would save it, into the files of
// RankInfo::mirror_fds, in turn into one of its two, so that a death in the
// midst of a copy leaves the copy before. A file ("image"):
//
//   header   page 0: whose copy of which step, and whether it is whole
//   layout   the manifest that a checkpoint would have, and where each range is
//   data     the ranges, as PieceLayout lays them
//
// The images of all ranks of one step are read as a checkpoint is: by any
// strategy on any number of ranks. Images are only read by processes that the
// launcher has forked from itself, as the ranks that wrote them: they have no
// format versions and no checksums of their data.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/snapshot.h"

namespace capstan {

// A step's images of all ranks.
struct MirroredStep {
  int restart = 0;       // RankInfo::restart of those who wrote it
  int64_t sequence = 0;  // copies that they had made
  TrainState state;
  std::vector<int> fds;  // by rank

  bool operator==(const MirroredStep& other) const;
};

// The newest step of which `fds` hold all ranks' whole images; unset if there
// is none.
absl::optional<MirroredStep> NewestMirroredStep(const std::vector<int>& fds);

// As LoadCheckpoint. `step`: NewestMirroredStep's, on each rank. Collective.
absl::StatusOr<TrainState> LoadMirroredStep(const MirroredStep& step,
                                            const CheckpointParts& parts);

// One rank's two images. One thread.
class Mirror {
 public:
  // `fds`: this rank's two. `source`: the step that the run goes on from, whose
  // images stay until a newer step is whole on all ranks; unset: none.
  Mirror(std::vector<int> fds, int restart,
         const absl::optional<MirroredStep>& source);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Bytes of memory that both images will take beyond what they have.
  int64_t BytesToAllocate(const CheckpointParts& parts) const;
  // Allocates them, so that Copy can't fail. RESOURCE_EXHAUSTED: no memory.
  absl::Status Allocate(const CheckpointParts& parts);

  // Copies the state after a step. All ranks must call it equally often, and
  // between two calls pass a collective. Call Allocate first.
  void Copy(const TrainState& state, const CheckpointParts& parts);

 private:
  struct Image {
    int fd = -1;
    char* memory = nullptr;  // mapped
    int64_t bytes = 0;
    std::string layout;  // what Copy has written there
  };

  absl::Status Map(int64_t bytes, Image* image);

  std::vector<Image> images_;
  const int restart_;
  int next_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MIRROR_H_
