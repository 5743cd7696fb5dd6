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
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"

namespace capstan {

// Returns the slices that this rank owns, as ranges of named tensors: views,
// not copies. Then come copies of plugins' states, which alone may differ in
// number and length from one call to the next. May throw what SaveState throws.
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

// The GPU that has pieces, or the CPU.
at::Device DeviceOf(const std::vector<StatePiece>& pieces);

// Copies of pieces to a block of memory, on a GPU beside its other work. One
// thread at a time.
class PieceCopies {
 public:
  PieceCopies() = default;
  ~PieceCopies();  // waits
  PieceCopies(const PieceCopies&) = delete;
  PieceCopies& operator=(const PieceCopies&) = delete;

  // Begins to copy pieces to their places in `to`, a GPU's when those before
  // are done. Host tensors are copied when it returns, with this rank's
  // intra-op threads, a GPU's tensors on a separate stream, after what the
  // current stream has been given; if `to` isn't pinned, the host waits for
  // them.
  void Start(const std::vector<StatePiece>& pieces, const PieceLayout& layout,
             char* to);
  // Makes what is issued next on the current stream wait until the copies are
  // complete. Call before the pieces change. Doesn't block the host.
  void BeforeChange();
  // Whether the copies are complete; doesn't block.
  bool done() const;
  // Blocks until they are.
  void Wait() const;
  // The same, without an exception if the GPU is lost, which is told elsewhere.
  void Settle() const;

 private:
  absl::optional<c10::Event> done_;  // of a GPU's
  bool change_waits_ = false;
};

// A copy of a rank's pieces in memory of its own, which is kept for the next
// copy. One thread at a time.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Allocates memory for copies of that many bytes, pinned for those from a
  // GPU, which is slow, as the kernel clears it. Take does so itself if
  // necessary. May be called by any thread that uses `device`, but not during
  // Take. RESOURCE_EXHAUSTED: there is no memory.
  absl::Status Reserve(int64_t bytes, const at::Device& device);

  // Begins to copy as PieceCopies; the previous copy must not be in use.
  // RESOURCE_EXHAUSTED: there is no memory.
  absl::Status Take(const std::vector<StatePiece>& pieces);
  // As PieceCopies'.
  void BeforeChange() { copies_.BeforeChange(); }

  // The pieces in the copy; blocks until that is complete. Any thread.
  const std::vector<StatePiece>& pieces();

 private:
  void Release();

  char* memory_ = nullptr;  // mapped
  int64_t reserved_ = 0;
  std::shared_ptr<void> pinned_;  // PinMemory, if the pieces are on a GPU
  std::vector<StatePiece> copied_;
  PieceCopies copies_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_SNAPSHOT_H_
