// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_HOSTS_HOST_FAILURES_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_HOSTS_HOST_FAILURES_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "trainer/process_group/shm/shm_meeting.h"

namespace capstan {

// Failed phases (phase_group.h) across hosts, for a group and those split from
// it. A rank that fails says so in the run's store; a leader whose connections
// end looks there whether that is why. Thread-safe but for NextEpoch.
class HostFailures {
 public:
  // `meeting` is of this host's ranks of the whole group, not owned.
  HostFailures(c10::intrusive_ptr<c10d::Store> store, ShmMeeting* meeting)
      : store_(std::move(store)), meeting_(meeting) {}

  // Leaves it to the others to find out if there is no store any more.
  void Tell(const PhaseFailure& failure);
  // Whether a rank of any host has failed since the last NextEpoch; then this
  // host's ranks know, too.
  bool Look();

  // Failures so far, the same number on all ranks between them.
  int64_t epoch() const { return epoch_; }
  void NextEpoch() { ++epoch_; }

 private:
  std::string Key() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  ShmMeeting* const meeting_;
  std::atomic<int64_t> epoch_{0};
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_HOSTS_HOST_FAILURES_H_
