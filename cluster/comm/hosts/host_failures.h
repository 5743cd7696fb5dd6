// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_HOSTS_HOST_FAILURES_H_
#define CAPSTAN_CLUSTER_COMM_HOSTS_HOST_FAILURES_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cluster/comm/shm/shm_meeting.h"

namespace capstan {

// Shares failed phases (phase_group.h) between hosts, for a group and those
// split from it. A rank that fails records it in the run's store; a leader
// whose connections end reads there whether that is the reason. Thread-safe
// except for NextEpoch.
class HostFailures {
 public:
  // `meeting` joins this host's ranks of the whole group; not owned.
  HostFailures(c10::intrusive_ptr<c10d::Store> store, ShmMeeting* meeting);

  // Records a failure. Does nothing if the store is gone: the others then
  // notice by themselves.
  void Tell(const PhaseFailure& failure);
  // Whether a rank of any host has failed since the last NextEpoch. If so, also
  // tells this host's ranks. Takes half a minute at most.
  bool Look();

  // Called by the leader of each of `hosts` before they reconnect the hosts of
  // the group `name`. Blocks until all have called it. Returns false on all if
  // a rank has failed meanwhile, whose leader may never call it. Throws
  // c10::DistError if the store is gone, or after kJoinTimeout.
  bool LeadersCome(const std::string& name, int hosts);

  // The number of failures so far, the same on all ranks except during a
  // recovery.
  int64_t epoch() const { return epoch_; }
  void NextEpoch() { ++epoch_; }

 private:
  std::string Key() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  // The same with a limit, since rank 0's host may be silent while others wait
  // for what Look finds.
  const c10::intrusive_ptr<c10d::Store> look_;
  ShmMeeting* const meeting_;
  std::atomic<int64_t> epoch_{0};
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_HOSTS_HOST_FAILURES_H_
