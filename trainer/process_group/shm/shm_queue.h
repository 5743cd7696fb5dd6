// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_QUEUE_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_QUEUE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "absl/status/status.h"

namespace capstan {

// Tasks that run one after the other, in the order in which they came. After
// one has failed no other runs: they have its error.
class ShmQueue {
 public:
  using Task = std::function<absl::Status()>;

  // Returns the task's number, for Wait.
  int64_t Put(Task task);
  // Runs the task here if no other one waits or runs, else waits for its turn.
  absl::Status RunNow(const Task& task);
  // Returns when task number `number` has run and is destroyed, or an earlier
  // one has failed.
  absl::Status Wait(int64_t number);

  // Runs tasks until Stop: call it in one thread of its own.
  void Work();
  // Tasks that have not begun will not run.
  void Stop();

 private:
  std::mutex mutex_;
  std::condition_variable put_;
  std::condition_variable done_;
  std::deque<Task> tasks_;
  int64_t put_count_ = 0;
  int64_t done_count_ = 0;
  bool stopped_ = false;
  absl::Status status_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_QUEUE_H_
