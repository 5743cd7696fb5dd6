// SPDX-License-Identifier: Apache-2.0
//
// The pieces of state that a rank saves, and copies of them in host memory,
// from which they can be written while training goes on (background_save.h) or
// read after the rank's death (mirror.h).
#ifndef CAPSTAN_TRAINER_CHECKPOINT_SNAPSHOT_H_
#define CAPSTAN_TRAINER_CHECKPOINT_SNAPSHOT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"

namespace capstan {

// Returns the slices that this rank owns, as ranges of named tensors: views,
// not copies.
std::vector<StatePiece> OwnedPieces(const CheckpointParts& parts);

// Returns the manifest of the whole state that `parts` belongs to, without
// files.
Manifest ManifestFrame(const TrainState& train_state,
                       const CheckpointParts& parts);

// Where copies of pieces lie in a block of memory: in order, each at a multiple
// of kAlignment bytes.
struct PieceLayout {
  static constexpr int64_t kAlignment = 64;
  // Returns the bytes that a piece of so many takes there.
  static int64_t Taken(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  explicit PieceLayout(const std::vector<StatePiece>& pieces);
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

// Copies pieces to their places in `to`, which isn't pinned, and waits. Copies
// host tensors with this rank's intra-op threads.
void CopyPieces(const std::vector<StatePiece>& pieces,
                const PieceLayout& layout, char* to);

// A copy of a rank's pieces in memory of its own, which is kept for the next
// copy. One thread at a time.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Allocates memory for copies of host tensors of that many bytes, which is
  // slow, as the kernel clears it. Take does so itself if necessary. May be
  // called by any thread, but not during Take.
  absl::Status Reserve(int64_t bytes);

  // Begins to copy; the previous copy must not be in use. Host tensors are
  // copied when it returns, a GPU's tensors on a separate stream to pinned
  // memory. RESOURCE_EXHAUSTED: there is no memory.
  absl::Status Take(const std::vector<StatePiece>& pieces);

  // Makes what is issued next on the current stream wait until the copy is
  // complete. Call before the pieces change. Doesn't block the host.
  void BeforeChange();

  // The pieces in the copy; blocks until that is complete. Any thread.
  const std::vector<StatePiece>& pieces();

 private:
  absl::Status ReservePinned(int64_t bytes, const at::Device& device);

  char* memory_ = nullptr;  // a mapping of its own, or pinned_'s
  int64_t reserved_ = 0;
  at::Tensor pinned_;  // if the pieces are on a GPU
  std::vector<StatePiece> copied_;
  absl::optional<c10::Event> done_;  // of the GPU's copies
  bool change_waits_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_SNAPSHOT_H_
