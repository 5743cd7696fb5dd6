// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SYNC_COLLECTIVES_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SYNC_COLLECTIVES_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/status.h"

namespace capstan {

// Collectives of CPU ranks that block until this rank's part is done;
// AsyncGroup makes a ProcessGroup of them. Each element is summed in rank order
// (SumFunction), so that results are bit-identical on all ranks and in every
// run. All ranks must make the same calls with the same sizes. One thread at a
// time, except for Stop. Errors: UNAVAILABLE if a rank has left,
// DEADLINE_EXCEEDED, CANCELLED after Stop; after one only Leave and Stop may be
// called.
class SyncCollectives {
 public:
  virtual ~SyncCollectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // A rank's number in the run, for messages.
  virtual int name(int rank) const = 0;

  // Returns once all ranks have called it.
  virtual absl::Status Barrier() = 0;
  // Sums data [size], at least one element, in place. SumOf knows `type`.
  virtual absl::Status AllReduce(char* data, int64_t size,
                                 c10::ScalarType type) = 0;
  // output [size], input [size * ranks]; output may be this rank's slice of
  // the input, or overlap nothing.
  virtual absl::Status ReduceScatter(char* output, const char* input,
                                     int64_t size, c10::ScalarType type) = 0;
  // output [bytes * ranks], input [bytes]; input may be this rank's slice of
  // the output, or overlap nothing.
  virtual absl::Status AllGather(char* output, const char* input,
                                 int64_t bytes) = 0;
  virtual absl::Status Broadcast(char* data, int64_t bytes, int root) = 0;

  // After an error: lets the others know at once. Called where collectives are.
  virtual void Leave() = 0;
  // Ends the collective under way, and later ones, with CANCELLED. Thread-safe.
  virtual void Stop() = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SYNC_COLLECTIVES_H_
