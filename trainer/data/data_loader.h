// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_DATA_DATA_LOADER_H_
#define CAPSTAN_TRAINER_DATA_DATA_LOADER_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"
#include "trainer/data/data_order.h"

namespace capstan {

// Which samples a rank trains on: micro-step a of the step that starts at
// position s of the order takes, on rank r of w, positions
// s + (a * w + r) * micro .. + micro - 1.
struct DataLoaderOptions {
  DataOrder order;
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int rank = 0;
  int world_size = 1;
  int64_t start_position = 0;  // the data position of a resumed run
  c10::Device device{c10::DeviceType::CPU};
};

// Reads ahead of training on a thread of its own, so that reading shows in no
// step: up to 16 micro-batches, fewer where they take more than 32 MiB, but at
// least 3. On CUDA they are copied ahead, too, from pinned memory, on a stream
// of their own.
//
// The reader is given the tensors of an earlier batch to write into, once
// nobody else holds them or a view of them.
class DataLoader {
 public:
  // `reader` outlives the loader.
  static std::unique_ptr<DataLoader> Create(const DataLoaderOptions& options,
                                            const DatasetReader& reader);
  virtual ~DataLoader();

  // The next micro-batch of this rank with its "sample_position" (dataset.h:
  // positions of the order), on options.device, for work on its
  // current stream, which is made to wait where the copy isn't over. Blocks
  // until the batch is read. An error is the reader's own; it is returned again
  // by later calls. Called by one thread at a time.
  virtual absl::StatusOr<Batch> Next() = 0;
};

// Sets *batch's kSamplePosition to `positions`, reusing a tensor of that
// length.
void SetSamplePositions(absl::Span<const int64_t> positions, Batch* batch);

// Whether nobody but *batch itself holds its tensors or their memory, so that
// the next batch may be written into them. What those did who held them has
// happened before the answer "yes".
bool Unshared(const Batch& batch);

// Room for one batch, filled again and again by one thread.
//
// On a GPU the reader writes into pinned memory, which is copied to the device
// on a stream of its own; whoever takes the batch has its stream wait for the
// copy, and never the host.
class BatchSlot {
 public:
  // Reads the batch of `samples`, into the memory of the slot's last batch
  // where that is free; adds their positions in the run's sequence
  // (kSamplePosition), which start at `position`; and starts the copy to the
  // device of `copies`, if that is a GPU's stream. Doesn't throw.
  absl::Status Fill(const DatasetReader& reader,
                    absl::Span<const int64_t> samples, int64_t position,
                    const c10::Stream& copies);

  // The batch, once, for work on the current stream of its device.
  Batch Take();

  // Bytes of the batch.
  int64_t bytes() const;

 private:
  absl::Status Read(const DatasetReader& reader,
                    absl::Span<const int64_t> samples, int64_t position);
  void CopyToDevice(const c10::Stream& copies);

  Batch host_;  // kept, to be filled again
  Batch device_;
  std::vector<int64_t> positions_;
  std::unique_ptr<c10::Event> copied_;  // null: nothing is copied
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_DATA_DATA_LOADER_H_
