// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/progress.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <chrono>
#include <new>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

// Without our launcher: this process's own.
RunProgress own_page;
std::atomic<RunProgress*> current{&own_page};
std::atomic<int64_t> finished_at{-1};  // Clock's count, of this process

}  // namespace

absl::StatusOr<std::unique_ptr<SharedProgress>> SharedProgress::Create() {
  void* const memory =
      mmap(nullptr, sizeof(RunProgress), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "can't start the ranks: no shared memory: ", strerror(errno)));
  }
  auto* const made = new (memory) RunProgress;
  current = made;
  return absl::WrapUnique(new SharedProgress(made));
}

SharedProgress::~SharedProgress() {
  current = &own_page;
  munmap(page_, sizeof(RunProgress));
}

void StepFinished(int64_t step) {
  RunProgress& shared = *current.load();
  const int64_t now = Clock::now().time_since_epoch().count();
  const int64_t before = finished_at.exchange(now);
  if (before >= 0) {
    shared.step_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                         Clock::duration(now - before))
                         .count();
  }
  int64_t latest = shared.step.load();
  while (latest < step && !shared.step.compare_exchange_weak(latest, step)) {
  }
}

int WorldChanges() { return current.load()->world_changes.load(); }

int64_t StepMilliseconds() { return current.load()->step_ms.load(); }

void NoteOutputFolder(const std::string& folder) {
  current.load()->folder.Set(folder);
}

std::string NotedOutputFolder() { return current.load()->folder.Get(); }

void NoteHosts(const std::string& addresses) {
  current.load()->hosts.Set(addresses);
}

std::string NotedHosts() { return current.load()->hosts.Get(); }

void NoteHostsGone(const std::string& hosts) {
  current.load()->gone.Set(hosts);
}

}  // namespace capstan
