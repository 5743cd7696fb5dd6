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

// Selects a rank's samples: micro-step a of the step at position s takes, on
// rank r of w, positions s + (a * w + r) * micro .. + micro - 1 of the order.
struct DataLoaderOptions {
  DataOrder order;
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int rank = 0;
  int world_size = 1;
  int64_t start_position = 0;  // data position when resuming
  c10::Device device{c10::DeviceType::CPU};
};

// Prefetches on its own thread, so that reading doesn't delay steps: up to 16
// micro-batches, fewer if they exceed 32 MiB, but at least 3. On CUDA they are
// also copied ahead from pinned memory, on a separate stream.
//
// Batch tensors are reused for later batches once nobody else holds them or a
// view of them.
class DataLoader {
 public:
  // `reader` must outlive the loader.
  static std::unique_ptr<DataLoader> Create(const DataLoaderOptions& options,
                                            const DatasetReader& reader);
  virtual ~DataLoader();

  // This rank's next micro-batch with its "sample_position" (dataset.h:
  // positions in the order), on options.device, for use on its current stream,
  // which waits for the copy if necessary. Blocks until the batch is read.
  // Returns the reader's error, and again on later calls. Called by one thread
  // at a time.
  virtual absl::StatusOr<Batch> Next() = 0;
};

// The batch of `samples`, with them as its kSamplePosition, on `device`.
absl::StatusOr<Batch> ReadBatch(const DatasetReader& reader,
                                absl::Span<const int64_t> samples,
                                c10::Device device);

// Sets *batch's kSamplePosition to `positions`, reusing a tensor of that
// length.
void SetSamplePositions(absl::Span<const int64_t> positions, Batch* batch);

// Whether only *batch holds its tensors and their memory, so that they may be
// overwritten. If true, everything former holders did happened before.
bool Unshared(const Batch& batch);

// A reusable buffer for one batch, filled by one thread.
//
// On a GPU the reader writes into pinned memory, which is copied on a separate
// stream; Take makes the consumer's stream, never the host, wait for the copy.
class BatchSlot {
 public:
  // Reads the batch of `samples`, reusing the last batch's memory if free; adds
  // their positions in the run's sequence (kSamplePosition), which start at
  // `position`; and starts the copy to the device of `copies`, if that is a GPU
  // stream. Doesn't throw.
  absl::Status Fill(const DatasetReader& reader,
                    absl::Span<const int64_t> samples, int64_t position,
                    const c10::Stream& copies);

  // Returns the batch, once, for use on its device's current stream.
  Batch Take();

  // Size of the batch in bytes.
  int64_t bytes() const;

 private:
  absl::Status Read(const DatasetReader& reader,
                    absl::Span<const int64_t> samples, int64_t position);
  void CopyToDevice(const c10::Stream& copies);

  Batch host_;  // kept for reuse
  Batch device_;
  std::vector<int64_t> positions_;
  std::unique_ptr<c10::Event> copied_;  // null: no copy
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_DATA_DATA_LOADER_H_
