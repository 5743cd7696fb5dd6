// SPDX-License-Identifier: Apache-2.0
//
// What ProfileScope writes down, kept by thread until the step is over.
#ifndef CAPSTAN_BASE_PROFILE_RECORDS_H_
#define CAPSTAN_BASE_PROFILE_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/profile.h"

namespace capstan {

enum class ThreadRole : int {
  kTraining,  // runs the steps, and on CPUs their backward
  kAutograd,  // runs backward while the training thread waits
  kOther,     // works beside the step
};

// One scope that has ended. Times are MonotonicNanoseconds().
struct ProfileRecord {
  const char* name = nullptr;
  const char* outermost = nullptr;  // the name of the outermost scope around
  bool is_outermost = false;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t own_ns = 0;  // without the scopes within
};

// One thread's records: the thread appends, one other takes away, without
// locks and without moving what is written.
class ThreadRecords {
 public:
  explicit ThreadRecords(int thread) : thread_(thread) {}
  ~ThreadRecords();
  ThreadRecords(const ThreadRecords&) = delete;
  ThreadRecords& operator=(const ThreadRecords&) = delete;

  // The calling thread's, made at its first call; never freed, so that the
  // records of a thread that has ended can still be taken.
  static ThreadRecords& Mine();
  // Those of all threads, in the order of their first call.
  static std::vector<ThreadRecords*> All();

  // By the thread itself.
  void Append(const ProfileRecord& record);
  // By one thread at a time: all that has been appended since the last call.
  std::vector<ProfileRecord> Take();

  int thread() const { return thread_; }  // 0 for the first
  ThreadRole role() const { return role_.load(std::memory_order_relaxed); }
  void set_role(ThreadRole role) {
    role_.store(role, std::memory_order_relaxed);
  }

  ProfileScope* current = nullptr;  // the innermost open scope of the thread

 private:
  struct Chunk {
    static constexpr int kSize = 1024;
    ProfileRecord records[kSize];
    std::atomic<int> count{0};
    Chunk* next = nullptr;  // there when count is kSize
  };

  const int thread_;
  std::atomic<ThreadRole> role_{ThreadRole::kOther};
  Chunk* last_ = new Chunk;  // the appending thread's
  Chunk* first_ = last_;     // the taking thread's, as taken_
  int taken_ = 0;            // of first_
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_PROFILE_RECORDS_H_
