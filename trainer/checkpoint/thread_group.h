// SPDX-License-Identifier: Apache-2.0
//
// For tests: ranks that are threads of one process.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_THREAD_GROUP_H_
#define CAPSTAN_TRAINER_CHECKPOINT_THREAD_GROUP_H_

#include <stdlib.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// The threads' rendezvous.
class ThreadMeeting {
 public:
  explicit ThreadMeeting(int size) : size_(size) {}

  int size() const { return size_; }

  void Sum(absl::Span<double> values) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (arrived_ == 0) sum_.assign(values.size(), 0.0);
    for (size_t i = 0; i < values.size(); ++i) sum_[i] += values[i];
    const int64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      result_ = sum_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
    std::copy(result_.begin(), result_.end(), values.begin());
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int64_t round_ = 0;
  std::vector<double> sum_;
  std::vector<double> result_;
};

// Implements only the host all-reduce, which is what checkpoints use.
class ThreadGroup final : public ProcessGroup {
 public:
  ThreadGroup(ThreadMeeting* meeting, int rank)
      : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  at::Device device() const override { return at::kCPU; }
  std::string backend() const override { return "none"; }
  std::unique_ptr<Work> AllReduce(const at::Tensor&) override { abort(); }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor&,
                                      const at::Tensor&) override {
    abort();
  }
  std::unique_ptr<Work> AllGather(const at::Tensor&,
                                  const at::Tensor&) override {
    abort();
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor&, int) override { abort(); }
  void AllReduceHost(absl::Span<double> values) override {
    meeting_->Sum(values);
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int) override {
    return absl::UnimplementedError("a ThreadGroup can't be split");
  }
  CommunicationStats stats() const override { return {}; }

 private:
  ThreadMeeting* const meeting_;
  const int rank_;
};

// Calls fn(group) on `ranks` threads; returns their statuses by rank.
inline std::vector<absl::Status> OnRanks(
    int ranks, const std::function<absl::Status(ProcessGroup&)>& fn) {
  ThreadMeeting meeting(ranks);
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadGroup group(&meeting, rank);
      statuses[rank] = fn(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_THREAD_GROUP_H_
