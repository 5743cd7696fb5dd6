// SPDX-License-Identifier: Apache-2.0
//
// What a rank tells its launcher while it runs, without a message: a page of
// memory that both see.
#ifndef CAPSTAN_TRAINER_LAUNCHER_PROGRESS_H_
#define CAPSTAN_TRAINER_LAUNCHER_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace capstan {

// Written by the ranks of one host, read by their launcher.
struct RunProgress {
  static constexpr int kMaxFolder = 4096;

  // The latest step that a rank has finished since the ranks were started; -1:
  // none.
  std::atomic<int64_t> step{-1};
  // How long a rank's last step took; -1: unknown.
  std::atomic<int64_t> step_ms{-1};
  // Rank 0's output folder, NUL-terminated, once `folder_bytes` says so.
  std::atomic<int32_t> folder_bytes{0};
  char folder[kMaxFolder] = {};
  // As NoteHostsGone.
  static constexpr int kMaxGone = 1024;
  std::atomic<int32_t> gone_bytes{0};
  char gone[kMaxGone] = {};
  // As NoteHosts.
  static constexpr int kMaxHosts = 1 << 16;
  std::atomic<int32_t> hosts_bytes{0};
  char hosts[kMaxHosts] = {};
};
static_assert(std::atomic<int64_t>::is_always_lock_free,
              "atomics in shared memory must not need locks");

// While alive, a page for this process and those that it forks meanwhile. One
// at a time, in a single-threaded process.
class SharedProgress {
 public:
  static absl::StatusOr<std::unique_ptr<SharedProgress>> Create();
  ~SharedProgress();
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;

  RunProgress& page() const { return *page_; }

 private:
  explicit SharedProgress(RunProgress* page) : page_(page) {}

  RunProgress* const page_;
};

// This rank has finished `step` of the run. Any thread; cheap.
void StepFinished(int64_t step);

// How long this process's, or with our launcher its ranks', last step took;
// negative: unknown. Async-signal-safe.
int64_t StepMilliseconds();

// Rank 0 has chosen the run's output folder, which a restart keeps.
void NoteOutputFolder(const std::string& folder);
// What rank 0 noted before the restart; "": nothing.
std::string NotedOutputFolder();

// The ranks' meeting has given up hosts, "1,3": the launcher is to start those
// that are left.
void NoteHostsGone(const std::string& hosts);

// The ranks of several hosts have met: the hosts' addresses in the traffic
// between them, "10.0.0.1,10.0.0.2", for a restart without the first of them.
void NoteHosts(const std::string& addresses);
// What was noted last; "": nothing.
std::string NotedHosts();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_PROGRESS_H_
