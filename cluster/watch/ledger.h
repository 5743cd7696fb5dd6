// SPDX-License-Identifier: Apache-2.0
//
// What each rank is doing right now, in memory that the ranks of a host share,
// so that others can read it even while the rank hangs.
#ifndef CAPSTAN_CLUSTER_WATCH_LEDGER_H_
#define CAPSTAN_CLUSTER_WATCH_LEDGER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/shared_memory.h"

namespace capstan {

// A short text that one thread writes while others read, who may see a mix of
// two texts, but nothing worse. A longer text is truncated.
template <int kBytes>
class LedgerText {
 public:
  void Set(absl::string_view text) {
    std::array<uint64_t, kWords> words = {};
    std::memcpy(words.data(), text.data(),
                text.size() < kBytes ? text.size() : kBytes);
    for (int i = 0; i < kWords; ++i) {
      words_[i].store(words[i], std::memory_order_relaxed);
    }
  }
  std::string Get() const {
    char text[kBytes + 1] = {};
    for (int i = 0; i < kWords; ++i) {
      const uint64_t word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(text + i * sizeof(word), &word, sizeof(word));
    }
    return text;
  }

 private:
  static_assert(kBytes % sizeof(uint64_t) == 0, "whole words");
  static constexpr int kWords = kBytes / sizeof(uint64_t);
  std::array<std::atomic<uint64_t>, kWords> words_;
};

constexpr int kCollectiveNameBytes = 16;
constexpr int kCollectiveLabelBytes = 40;

struct LedgerCollective {
  std::atomic<uint64_t> number;  // 0 while it is written
  std::atomic<uint32_t> done;
  std::atomic<int64_t> bytes;
  std::atomic<int64_t> since_ns;  // issued, or started where that is seen
  LedgerText<kCollectiveNameBytes> name;
  LedgerText<kCollectiveLabelBytes> label;
};

// A process group's collectives, numbered from 1 in the order of issue, which
// is the same on all of its ranks.
struct LedgerGroup {
  static constexpr int kRecent = 32;

  std::atomic<uint64_t> issued;
  std::atomic<uint64_t> started;
  // Whether `done` is written; on a GPU the host doesn't see the end.
  std::atomic<uint32_t> sees_ends;
  // Whether only the last collective started can be in progress.
  std::atomic<uint32_t> in_order;
  LedgerCollective recent[kRecent];  // by number % kRecent
};

// Groups beyond these aren't recorded.
constexpr int kLedgerGroups = 6;

// A rank's record. Times are CLOCK_MONOTONIC's, in nanoseconds. All fields are
// zero at first.
struct alignas(128) LedgerSlot {
  std::atomic<int32_t> pid;  // 0: nobody has taken the slot
  std::atomic<int32_t> rank;
  std::atomic<uint64_t> start_ticks;  // of the process: tells pids apart
  // The activity, "step" or "evaluation", say; none that is watched if
  // activity_since_ns is 0.
  LedgerText<24> activity;
  std::atomic<int64_t> activity_since_ns;
  std::atomic<int64_t> limit_ns;  // of the activity
  std::atomic<int64_t> step;      // under way or, between steps, the last one
  LedgerText<16> phase;           // of the step; "": none
  std::atomic<int64_t> phase_since_ns;
  // Counts the records made here.
  std::atomic<uint64_t> events;
  // The rank's watchdog writes the rest: signs of life (ProgressCount), when it
  // last looked, when it restarted its clock after the process had been
  // stopped, and whether the limit is exceeded.
  std::atomic<uint64_t> progress;
  std::atomic<int64_t> watched_ns;
  std::atomic<int64_t> counts_from_ns;
  std::atomic<uint32_t> alarm;
  // Set by another rank's watchdog to ask for the stacks of this rank's
  // threads.
  std::atomic<uint32_t> wants_stacks;
  LedgerGroup groups[kLedgerGroups];
};

// What the ranks of a host have in common.
struct alignas(128) LedgerHeader {
  // The time when all ranks are to end; 0: none.
  std::atomic<int64_t> end_ns;
};

// Memory with the slots of a host's ranks.
class LedgerSegment {
 public:
  static absl::StatusOr<std::unique_ptr<LedgerSegment>> Create(int slots);
  // Maps another process's segment by its address(); that process keeps the
  // file open.
  static absl::StatusOr<std::unique_ptr<LedgerSegment>> Open(
      const std::string& address, int slots);

  const std::string& address() const { return memory_->address(); }
  int slots() const { return slots_; }
  LedgerHeader& header() const {
    return *reinterpret_cast<LedgerHeader*>(memory_->data());
  }
  LedgerSlot& slot(int index) const {
    return reinterpret_cast<LedgerSlot*>(&header() + 1)[index];
  }

 private:
  LedgerSegment(std::unique_ptr<SharedMemory> memory, int slots)
      : memory_(std::move(memory)), slots_(slots) {}

  const std::unique_ptr<SharedMemory> memory_;
  const int slots_;
};

// Returns a key that is equal for processes that can open each other's files
// under /proc.
std::string HostKey(int rank);

// The run's ranks by host, and this host's ledger.
struct Ledgers {
  struct Host {
    std::string name;        // for people
    std::vector<int> ranks;  // ascending; slot i is ranks[i]'s
  };
  std::vector<Host> hosts;  // by their lowest rank
  int host = 0;             // this one
  int local = 0;            // this process's slot
  std::shared_ptr<LedgerSegment> segment;
  // Carries the reports between hosts; null with one host.
  c10::intrusive_ptr<c10d::Store> store;

  LedgerSlot& own() const { return segment->slot(local); }
};

// Returns the slot in which this process records, which is valid forever.
// Before JoinLedgers nobody else sees it.
LedgerSlot& OwnSlot();

// Enables ledgers; otherwise JoinLedgers does nothing. Called before the
// process group is created.
void WantLedgers();

// Takes this rank's slot in its host's memory, which the host's first rank
// creates. Collective; throws what `store` throws. A rank that can't open the
// memory sees only itself.
void JoinLedgers(int rank, int world_size,
                 const c10::intrusive_ptr<c10d::Store>& store);

// Transfers what JoinLedgers has joined to the caller; if it did nothing,
// returns a ledger of this rank alone. Fails if there is no memory.
absl::StatusOr<Ledgers> TakeLedgers();

// Returns CLOCK_MONOTONIC's time.
int64_t LedgerNow();

// Records that this process enters `phase` of its step.
void LogPhase(const char* phase);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_LEDGER_H_
