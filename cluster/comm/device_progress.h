// SPDX-License-Identifier: Apache-2.0
//
// How far a device has come with a process's collectives, whose ends the host
// doesn't see.
#ifndef CAPSTAN_CLUSTER_COMM_DEVICE_PROGRESS_H_
#define CAPSTAN_CLUSTER_COMM_DEVICE_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cluster/comm/device_times.h"
#include "cluster/watch/collective_log.h"

namespace capstan {

// A process group's collectives on a device, in the order of their stream.
// Thread-safe.
class GroupProgress {
 public:
  // `failed`: whether the group has failed, so that what ends from then on
  // hasn't been done; any thread.
  GroupProgress(const CollectiveLog& log, std::function<bool()> failed)
      : log_(log), failed_(std::move(failed)) {}

  // The host is about to issue a collective, with this thread's
  // CollectiveLabel, and may block in it: NCCL connects at a communicator's
  // first. Returns its number.
  uint64_t Entered(const char* name, int64_t bytes);
  // The host has issued it; a null `work` is counted and not followed.
  void Issued(uint64_t number, std::unique_ptr<DeviceWork> work);

  // Logs what the device has begun and ended since the last call: in the ledger
  // a collective is issued when the device comes to it, or the host is in it
  // and the device has ended those before.
  void Look();

  // If the group has failed: the collective that the device was in. Else "".
  std::string Failed() const;

 private:
  struct Followed {
    uint64_t number = 0;  // of the group's collectives, from 1
    const char* name = nullptr;
    std::string label;
    int64_t bytes = 0;
    bool entered = true;               // the host is in it
    std::shared_ptr<DeviceWork> work;  // null: neither begins nor ends
    uint64_t logged = 0;               // its number in the ledger
    uint64_t untold = 0;  // how many come after it that aren't followed
  };

  const CollectiveLog log_;
  const std::function<bool()> failed_;
  mutable std::mutex mutex_;
  uint64_t entered_ = 0;
  std::deque<Followed> followed_;
};

// A thread that looks at a process's groups, fifty times a second. It isn't the
// watchdog's: a call of CUDA may hang with the device, and that is to be told.
class ProgressThread {
 public:
  ProgressThread();
  // If the thread hangs it is left behind, with what it uses.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void Add(std::shared_ptr<GroupProgress> group);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_DEVICE_PROGRESS_H_
