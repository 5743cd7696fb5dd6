// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/shm/shm_queue.h"

#include <utility>

namespace capstan {

int64_t ShmQueue::Put(Task task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) {
    tasks_.push_back(std::move(task));
    put_.notify_one();
  }
  return ++put_count_;
}

absl::Status ShmQueue::RunNow(const Task& task) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (put_count_ != done_count_) {
      lock.unlock();
      return Wait(Put(task));
    }
    if (!status_.ok()) return status_;
    // The worker has nothing to do until the caller of Put comes back.
    ++put_count_;
  }
  const absl::Status status = task();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status.ok()) ++done_count_;
  status_.Update(status);
  return status;
}

absl::Status ShmQueue::Wait(int64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return done_count_ >= number || !status_.ok(); });
  return done_count_ >= number ? absl::OkStatus() : status_;
}

void ShmQueue::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    put_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    const absl::Status status = task();
    // What it holds is let go before Wait returns.
    task = nullptr;
    lock.lock();
    if (status.ok()) {
      ++done_count_;
    } else {
      status_.Update(status);
      tasks_.clear();
    }
    done_.notify_all();
  }
}

void ShmQueue::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  status_.Update(absl::CancelledError("the process group is closed"));
  tasks_.clear();
  put_.notify_all();
  done_.notify_all();
}

}  // namespace capstan
