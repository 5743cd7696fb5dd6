// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_SYNC_COLLECTIVES_H_
#define CAPSTAN_CLUSTER_COMM_SYNC_COLLECTIVES_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/comm/shm/shm_meeting.h"

namespace capstan {

// Collectives of CPU ranks that block until this rank's part is done;
// AsyncGroup makes a ProcessGroup of them. Each element is summed along one
// tree over the ranks (SumFunction), so that results are bit-identical on all
// ranks and in every run. All ranks must make the same calls with the same
// sizes: INTERNAL, which names both calls, if ranks of one host don't. One
// thread at a time, except for Stop. Other errors: UNAVAILABLE if a rank has
// left, ABORTED if one has failed in its phase (ShmMeeting::Fail),
// DEADLINE_EXCEEDED, CANCELLED after Stop. After an error no collective may be
// called until Reset.
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
  // output [bytes * ranks], input [bytes * ranks]; they don't overlap.
  virtual absl::Status AllToAll(char* output, const char* input,
                                int64_t bytes) = 0;
  // output [bytes], input [bytes]; -1: from none, to none.
  virtual absl::Status SendRecv(char* output, int from, const char* input,
                                int to, int64_t bytes) = 0;

  // Tells the others at once that this rank has left, after an error. Called on
  // the thread that calls collectives.
  virtual void Leave() = 0;
  // Ends the current collective and later ones with CANCELLED. Thread-safe.
  virtual void Stop() = 0;

  // The ranks of this host.
  virtual ShmMeeting* meeting() = 0;
  // Tells the other hosts that a rank of this host has failed in its phase.
  // Their collectives end with Disconnect at the latest.
  virtual void TellHosts(const PhaseFailure& failure) {}
  // Closes the connections to other hosts after a failure, which ends their
  // waits.
  virtual void Disconnect() {}
  // Restores the initial state. All ranks of a host call it between the two
  // calls of ShmMeeting::Realign.
  virtual void Reset() = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_SYNC_COLLECTIVES_H_
