// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_DATA_BATCH_SLOT_H_
#define CAPSTAN_TRAINER_DATA_BATCH_SLOT_H_

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/dataset.h"

namespace capstan {

// Sets *batch's kSamplePosition to `positions`, in the tensor that is there if
// it has that length.
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
  // Has `reader` make the batch of `samples`, in the memory of the slot's last
  // batch as far as that is free, adds their places in the run's sequence
  // (kSamplePosition), `position` and on, and starts copying it to the device
  // of `copies`, if that is a GPU's stream. Catches what is thrown.
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

#endif  // CAPSTAN_TRAINER_DATA_BATCH_SLOT_H_
