// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/ledger.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/meet/texts_of_ranks.h"
#include "cluster/watch/process_state.h"

namespace capstan {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "atomics in shared memory must not need locks");

// Until a rank has joined, and for processes that never do.
LedgerSlot private_slot;
std::atomic<LedgerSlot*> own_slot{&private_slot};

bool wanted = false;
Ledgers joined;

int64_t SegmentBytes(int slots) {
  return static_cast<int64_t>(sizeof(LedgerHeader) +
                              slots * sizeof(LedgerSlot));
}

void TakeSlot(LedgerSlot* slot, int rank) {
  slot->rank = rank;
  slot->start_ticks = LookAtProcess(getpid()).start_ticks;
  slot->step = OwnSlot().step.load();
  slot->pid = getpid();
  own_slot = slot;
}

// Tells several "hosts" of one machine apart; or "".
std::string GivenHostId() {
  const char* id = getenv("CAPSTAN_HOST_ID");
  return id != nullptr ? id : "";
}

std::string HostDisplayName() {
  const std::string id = GivenHostId();
  if (!id.empty()) return id;
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

std::string Key(const char* what, int rank) {
  return absl::StrCat("capstan/watch/", what, "/", rank);
}

// The run's hosts, of each rank's HostKey and its host's name.
std::vector<Ledgers::Host> HostsOf(const std::vector<std::string>& texts) {
  std::map<std::string, size_t> index;
  std::vector<Ledgers::Host> hosts;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::vector<std::string> lines = absl::StrSplit(texts[rank], '\n');
    const size_t host = index.emplace(lines[0], hosts.size()).first->second;
    if (host == hosts.size()) hosts.push_back({lines.back(), {}});
    hosts[host].ranks.push_back(static_cast<int>(rank));
  }
  return hosts;
}

// This host's segment: its first rank's.
std::shared_ptr<LedgerSegment> ShareSegment(const Ledgers& ledgers,
                                            c10d::Store& store) {
  const std::vector<int>& ranks = ledgers.hosts[ledgers.host].ranks;
  const int slots = static_cast<int>(ranks.size());
  const std::string key = Key("segment", ranks[0]);
  absl::StatusOr<std::unique_ptr<LedgerSegment>> segment;
  if (ledgers.local == 0) {
    segment = LedgerSegment::Create(slots);
    store.set(key, ToStored(segment.ok() ? (*segment)->address() : ""));
  } else {
    segment = LedgerSegment::Open(FromStored(store.get(key)), slots);
  }
  if (!segment.ok()) return nullptr;
  return std::move(*segment);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LedgerSegment>> LedgerSegment::Create(
    int slots) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory,
                           SharedMemory::Create(SegmentBytes(slots)));
  return absl::WrapUnique(new LedgerSegment(std::move(memory), slots));
}

absl::StatusOr<std::unique_ptr<LedgerSegment>> LedgerSegment::Open(
    const std::string& address, int slots) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory,
                           SharedMemory::Open(address, SegmentBytes(slots)));
  return absl::WrapUnique(new LedgerSegment(std::move(memory), slots));
}

std::string HostKey(int rank) {
  const std::string id = GivenHostId();
  if (!id.empty()) return absl::StrCat("host ", id);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = {};
  struct stat processes = {};
  if (boot.empty() || gethostname(name, sizeof(name) - 1) != 0 ||
      stat("/proc/self/ns/pid", &processes) != 0) {
    return absl::StrCat("rank ", rank);
  }
  return absl::StrCat(boot, " ", name, " ", processes.st_ino, " ", geteuid());
}

LedgerSlot& OwnSlot() { return *own_slot.load(std::memory_order_relaxed); }

void WantLedgers() { wanted = true; }

void JoinLedgers(int rank, int world_size,
                 const c10::intrusive_ptr<c10d::Store>& store) {
  if (!wanted) return;
  const std::vector<std::string> texts =
      TextsOfRanks(*store, "capstan/watch/host", rank, world_size,
                   absl::StrCat(HostKey(rank), "\n", HostDisplayName()));
  Ledgers ledgers;
  ledgers.hosts = HostsOf(texts);
  for (size_t host = 0; host < ledgers.hosts.size(); ++host) {
    const std::vector<int>& ranks = ledgers.hosts[host].ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) continue;
    ledgers.host = static_cast<int>(host);
    ledgers.local = static_cast<int>(found - ranks.begin());
  }
  ledgers.segment = ShareSegment(ledgers, *store);
  if (ledgers.hosts.size() > 1) ledgers.store = store->clone();
  if (ledgers.segment == nullptr) {
    // The others see that its slot is empty, and it sees only itself.
    auto alone = LedgerSegment::Create(
        static_cast<int>(ledgers.hosts[ledgers.host].ranks.size()));
    if (!alone.ok()) return;
    ledgers.segment = std::move(*alone);
  }
  // Collectives may record to the last moment of the process.
  new std::shared_ptr<LedgerSegment>(ledgers.segment);
  TakeSlot(&ledgers.own(), rank);
  joined = std::move(ledgers);
}

absl::StatusOr<Ledgers> TakeLedgers() {
  if (joined.segment != nullptr) return std::exchange(joined, Ledgers());
  Ledgers alone;
  alone.hosts = {{HostDisplayName(), {0}}};
  CAPSTAN_ASSIGN_OR_RETURN(alone.segment, LedgerSegment::Create(1));
  new std::shared_ptr<LedgerSegment>(alone.segment);
  TakeSlot(&alone.own(), 0);
  return alone;
}

int64_t LedgerNow() { return MonotonicNanoseconds(); }

void LogPhase(const char* phase) {
  LedgerSlot& slot = OwnSlot();
  slot.phase.Set(phase);
  slot.phase_since_ns.store(LedgerNow(), std::memory_order_relaxed);
  slot.events.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace capstan
