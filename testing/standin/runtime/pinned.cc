// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory that pending works use: the host may not write what they read,
// nor touch what they write. Pages are protected meanwhile; the fault knows
// exactly which bytes are in use.
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

constexpr uintptr_t kPage = 4096;

struct Pending {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool writes = false;
  int stream = 0;
  const void* work = nullptr;
  std::string name;
};

struct Pendings {
  std::mutex mutex;  // taken last
  std::vector<Pending> all;
};

Pendings& ThePendings() {
  static Pendings* const pendings = new Pendings;
  return *pendings;
}

// What the pages of [begin, end) must be, by what is pending on each.
void SetProtection(const Pendings& pendings, uintptr_t begin, uintptr_t end) {
  begin &= ~(kPage - 1);
  const uintptr_t last = (end + kPage - 1) & ~(kPage - 1);
  std::vector<const Pending*> near;
  for (const Pending& pending : pendings.all) {
    if (pending.end > begin && pending.begin < last) near.push_back(&pending);
  }
  // Runs of pages with the same protection are set at once.
  uintptr_t run = begin;
  int of_run = -1;
  for (uintptr_t page = begin; page < end; page += kPage) {
    int protection = PROT_READ | PROT_WRITE;
    for (const Pending* pending : near) {
      if (pending->end <= page || pending->begin >= page + kPage) continue;
      if (pending->writes) {
        protection = PROT_NONE;
      } else {
        protection &= ~PROT_WRITE;
      }
    }
    if (protection != of_run && of_run >= 0) {
      mprotect(reinterpret_cast<void*>(run), page - run, of_run);
      run = page;
    }
    of_run = protection;
  }
  if (of_run >= 0) {
    mprotect(reinterpret_cast<void*>(run), last - run, of_run);
  }
}

template <typename Function>
void ForPinned(const Work& work, Function function) {
  if (TheSettings().paper) return;
  for (const auto* spans : {&work.reads, &work.writes}) {
    for (const Span& span : *spans) {
      if (span.bytes <= 0 || !IsPinned(span.begin)) continue;
      const auto begin = reinterpret_cast<uintptr_t>(span.begin);
      function(begin, begin + static_cast<uintptr_t>(span.bytes),
               spans == &work.writes);
    }
  }
}

}  // namespace

void Protect(const Work& work, int stream, const void* key) {
  ForPinned(work, [&](uintptr_t begin, uintptr_t end, bool writes) {
    Pendings& pendings = ThePendings();
    std::lock_guard lock(pendings.mutex);
    pendings.all.push_back({begin, end, writes, stream, key, work.name});
    SetProtection(pendings, begin, end);
  });
}

void Unprotect(const Work& work, const void* key) {
  ForPinned(work, [&](uintptr_t begin, uintptr_t end, bool writes) {
    Pendings& pendings = ThePendings();
    std::lock_guard lock(pendings.mutex);
    auto& all = pendings.all;
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Pending& pending) {
          return pending.work == key && pending.begin == begin &&
                 pending.end == end && pending.writes == writes;
        });
    if (found != all.end()) all.erase(found);
    SetProtection(pendings, begin, end);
  });
}

std::string PendingAt(const void* p, bool write) {
  Pendings& pendings = ThePendings();
  std::lock_guard lock(pendings.mutex);
  const auto at = reinterpret_cast<uintptr_t>(p);
  mprotect(reinterpret_cast<void*>(at & ~(kPage - 1)), kPage,
           PROT_READ | PROT_WRITE);
  for (const Pending& pending : pendings.all) {
    if (at < pending.begin || at >= pending.end) continue;
    if (!write && !pending.writes) continue;
    return pending.name + " on stream " + std::to_string(pending.stream) +
           (pending.writes ? " is to write" : " is to read");
  }
  return "";
}

}  // namespace capstan::standin
