// SPDX-License-Identifier: Apache-2.0
//
// What each rank is doing right now, in memory that the ranks of a host share:
// who looks for a rank that hangs reads it there, whatever state that rank is
// in.
#ifndef CAPSTAN_TRAINER_WATCH_LEDGER_H_
#define CAPSTAN_TRAINER_WATCH_LEDGER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// A short text that one thread writes while others read: these may see a mix of
// two texts, but nothing worse. What is longer is cut off.
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
  // Whether `done` is written: on a GPU the host doesn't see the end.
  std::atomic<uint32_t> sees_ends;
  // Whether only the last that was started can be under way.
  std::atomic<uint32_t> in_order;
  LedgerCollective recent[kRecent];  // by number % kRecent
};

// Groups beyond these aren't recorded.
constexpr int kLedgerGroups = 6;

// A rank's. Times are CLOCK_MONOTONIC's, in nanoseconds. All zero at first.
struct alignas(128) LedgerSlot {
  std::atomic<int32_t> pid;  // 0: nobody has taken the slot
  std::atomic<int32_t> rank;
  std::atomic<uint64_t> start_ticks;  // of the process: tells pids apart
  // What it does: "step", "evaluation", ..; since 0: nothing that is watched.
  LedgerText<24> activity;
  std::atomic<int64_t> activity_since_ns;
  std::atomic<int64_t> limit_ns;  // of the activity
  std::atomic<int64_t> step;      // under way or, between steps, the last one
  LedgerText<16> phase;           // of the step; "": none
  std::atomic<int64_t> phase_since_ns;
  // Grows with everything that is recorded here.
  std::atomic<uint64_t> events;
  // The rest is its watchdog's: signs of life (ProgressCount), when it last
  // looked, when it began to count anew after it had been stopped, and whether
  // the limit is exceeded.
  std::atomic<uint64_t> progress;
  std::atomic<int64_t> watched_ns;
  std::atomic<int64_t> counts_from_ns;
  std::atomic<uint32_t> alarm;
  // Another's watchdog asks for the stacks of this rank's threads.
  std::atomic<uint32_t> wants_stacks;
  LedgerGroup groups[kLedgerGroups];
};

// What the ranks of a host have in common.
struct alignas(128) LedgerHeader {
  uint64_t nonce;
  uint64_t slots;
  // When all of them end; 0: they don't.
  std::atomic<int64_t> end_ns;
};

// Memory with the slots of a host's ranks, which is freed with the last process
// that maps it, however that ends: there is no file to remain.
class LedgerSegment {
 public:
  static absl::StatusOr<std::unique_ptr<LedgerSegment>> Create(int slots);
  // Another process's, by its address(). The file stays open there.
  static absl::StatusOr<std::unique_ptr<LedgerSegment>> Open(
      const std::string& address, int slots);
  ~LedgerSegment();
  LedgerSegment(const LedgerSegment&) = delete;
  LedgerSegment& operator=(const LedgerSegment&) = delete;

  const std::string& address() const { return address_; }
  int slots() const { return slots_; }
  LedgerHeader& header() const { return *header_; }
  LedgerSlot& slot(int index) const {
    return reinterpret_cast<LedgerSlot*>(header_ + 1)[index];
  }

 private:
  LedgerSegment() = default;
  absl::Status Map(int slots);

  std::string address_;
  int slots_ = 0;
  int fd_ = -1;
  LedgerHeader* header_ = nullptr;
};

// Equal for processes that can open each other's files under /proc.
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
  // By which hosts hear of each other; null with one host.
  c10::intrusive_ptr<c10d::Store> store;

  LedgerSlot& own() const { return segment->slot(local); }
};

// Where this process records; never null, and valid for ever. A slot that
// nobody else sees until JoinLedgers.
LedgerSlot& OwnSlot();

// This process's run shall have ledgers: without it JoinLedgers does nothing.
// Called before the process group is created.
void WantLedgers();

// Takes this rank's slot in its host's memory, which the host's first rank
// makes. All ranks call it at once; throws what `store` throws. A rank that
// can't open the memory is alone in what it sees. Null with a single rank.
void JoinLedgers(int rank, int world_size,
                 const c10::intrusive_ptr<c10d::Store>& store);

// What JoinLedgers has joined, handed over; a ledger of this rank alone if it
// did nothing. Fails if there is no memory.
absl::StatusOr<Ledgers> TakeLedgers();

// CLOCK_MONOTONIC's now.
int64_t LedgerNow();

// This process enters `phase` of its step.
void LogPhase(const char* phase);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_WATCH_LEDGER_H_
