// SPDX-License-Identifier: Apache-2.0
//
// What ProfileScope records, kept per thread until the step is over.
#ifndef CAPSTAN_BASE_PROFILE_RECORDS_H_
#define CAPSTAN_BASE_PROFILE_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/profile.h"

namespace capstan {

// What ProfileScopes do while they are on.
struct ProfileListeners {
  // Records are kept.
  static std::atomic<bool> recording;
  // If set, called at both ends of a scope, on its thread: ranges for tools
  // beside the trainer. Set once, before other threads open scopes.
  static void (*push)(const char* name);
  static void (*pop)();
};

enum class ThreadRole : int {
  kTraining,  // runs the steps, and on CPUs their backward
  kAutograd,  // runs backward while the training thread waits
  kOther,     // works concurrently with the step
};

// A completed scope. Times are MonotonicNanoseconds().
struct ProfileRecord {
  const char* name = nullptr;
  const char* outermost = nullptr;  // name of the outermost enclosing scope
  bool is_outermost = false;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t own_ns = 0;  // excludes inner scopes
};

// One thread's records, a lock-free single-producer, single-consumer list;
// records never move.
class ThreadRecords {
 public:
  explicit ThreadRecords(int thread) : thread_(thread) {}
  ThreadRecords(const ThreadRecords&) = delete;
  ThreadRecords& operator=(const ThreadRecords&) = delete;

  // The calling thread's, created on first use and never freed, so that records
  // outlive their thread.
  static ThreadRecords& Mine();
  // All threads', in order of first use.
  static std::vector<ThreadRecords*> All();

  // Called by the owning thread.
  void Append(const ProfileRecord& record);
  // Removes and returns what was appended since the last call. Called by one
  // thread at a time.
  std::vector<ProfileRecord> Take();

  int thread() const { return thread_; }  // 0 for the first
  ThreadRole role() const { return role_.load(std::memory_order_relaxed); }
  void set_role(ThreadRole role) {
    role_.store(role, std::memory_order_relaxed);
  }

  ProfileScope* current = nullptr;  // innermost open scope

 private:
  struct Chunk {
    static constexpr int kSize = 1024;
    ProfileRecord records[kSize];
    std::atomic<int> count{0};
    Chunk* next = nullptr;  // set once count is kSize
  };

  const int thread_;
  std::atomic<ThreadRole> role_{ThreadRole::kOther};
  Chunk* last_ = new Chunk;  // owned by the appending thread
  Chunk* first_ = last_;     // owned by the taking thread, like taken_
  int taken_ = 0;            // records taken from first_
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_PROFILE_RECORDS_H_
