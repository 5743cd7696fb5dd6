// SPDX-License-Identifier: Apache-2.0
//
// What a running rank tells its launcher through a page of shared memory.
#ifndef CAPSTAN_CLUSTER_LAUNCH_PROGRESS_H_
#define CAPSTAN_CLUSTER_LAUNCH_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace capstan {

// A text of less than kBytes bytes; a longer one isn't noted. Several ranks may
// set it if they set the same.
template <int kBytes>
class NotedText {
 public:
  void Set(const std::string& text) {
    if (text.size() >= kBytes) return;
    memcpy(text_, text.data(), text.size());
    bytes_ = static_cast<int32_t>(text.size());
  }
  std::string Get() const { return std::string(text_, bytes_.load()); }

 private:
  std::atomic<int32_t> bytes_{0};
  char text_[kBytes] = {};
};

// Written by the ranks of one host, read by their launcher.
struct RunProgress {
  // The latest step that a rank has finished since the ranks were started; -1:
  // none.
  std::atomic<int64_t> step{-1};
  // How long a rank's last step took; -1: unknown.
  std::atomic<int64_t> step_ms{-1};
  // The arguments of NoteOutputFolder, NoteHostsGone and NoteHosts.
  NotedText<4096> folder;
  NotedText<1024> gone;
  NotedText<1 << 16> hosts;
  // The result of WorldChanges; written by the launcher.
  std::atomic<int> world_changes{0};
};
static_assert(std::atomic<int64_t>::is_always_lock_free,
              "atomics in shared memory must not need locks");

// While alive, this process and those that it forks share a page. At most one
// may exist, in a single-threaded process.
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

// Records that this rank has finished `step` of the run. Thread-safe; cheap.
void StepFinished(int64_t step);

// Returns the time of the last step of this process or, in our launcher, of its
// ranks; negative: unknown. Async-signal-safe.
int64_t StepMilliseconds();

// Whether the launcher asks the ranks to leave at the end of a step, because
// hosts come or go: 0; 1; or 2 if they are to save a checkpoint before, since
// several hosts go with their mirrors. All leave if rank 0 is asked, and save
// if any of them is to. Thread-safe; cheap.
int WorldChanges();

// Records the run's output folder, which rank 0 has chosen and a restart keeps.
void NoteOutputFolder(const std::string& folder);
// Returns what rank 0 recorded before the restart, or "".
std::string NotedOutputFolder();

// Records that the ranks' meeting has given up hosts ("1,3"), so that the
// launcher starts the ranks of the others.
void NoteHostsGone(const std::string& hosts);

// Records the addresses of hosts whose ranks have met, "10.0.0.1,10.0.0.2", for
// a restart without the first of them.
void NoteHosts(const std::string& addresses);
// Returns what NoteHosts recorded last, or "".
std::string NotedHosts();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_PROGRESS_H_
