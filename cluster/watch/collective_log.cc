// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/collective_log.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/collective_label.h"
#include "cluster/watch/ledger.h"

namespace capstan {
namespace {

static_assert(CollectiveLabel::kMaxBytes == kCollectiveLabelBytes,
              "labels must fit");

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

int NextGroup() {
  static std::atomic<int> groups{0};
  const int next = groups.fetch_add(1);
  return next < kLedgerGroups ? next : -1;
}

std::string Bytes(int64_t bytes) {
  if (bytes < (1 << 10)) return absl::StrCat(bytes, " bytes");
  if (bytes < (1 << 20)) return absl::StrFormat("%.0f KiB", bytes / 1024.0);
  return absl::StrFormat("%.1f MiB", bytes / 1048576.0);
}

}  // namespace

std::string CollectiveText(absl::string_view name, uint64_t number,
                           absl::string_view label, int64_t bytes, int group) {
  return absl::StrCat(
      name, " ", number, label.empty() ? "" : " of ", label, " (", Bytes(bytes),
      group == 0 ? "" : absl::StrCat(", process group ", group), ")");
}

CollectiveLog::CollectiveLog(bool sees_ends, bool in_order)
    : group_(NextGroup()) {
  if (group_ < 0) return;
  OwnSlot().groups[group_].in_order = in_order ? 1 : 0;
  OwnSlot().groups[group_].sees_ends = sees_ends ? 1 : 0;
}

uint64_t CollectiveLog::Issued(const char* name, int64_t bytes) const {
  if (group_ < 0) return 0;
  LedgerSlot& slot = OwnSlot();
  LedgerGroup& group = slot.groups[group_];
  const uint64_t number = group.issued.load(kRelaxed) + 1;
  LedgerCollective& one = group.recent[number % LedgerGroup::kRecent];
  one.number.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  one.done.store(0, kRelaxed);
  one.bytes.store(bytes, kRelaxed);
  one.since_ns.store(LedgerNow(), kRelaxed);
  one.name.Set(name);
  one.label.Set(CollectiveLabel::Current());
  one.number.store(number, std::memory_order_release);
  group.issued.store(number, std::memory_order_release);
  slot.events.fetch_add(1, kRelaxed);
  return number;
}

void CollectiveLog::Started(uint64_t number) const {
  if (group_ < 0) return;
  LedgerSlot& slot = OwnSlot();
  LedgerGroup& group = slot.groups[group_];
  LedgerCollective& one = group.recent[number % LedgerGroup::kRecent];
  if (one.number.load(kRelaxed) == number) {
    one.since_ns.store(LedgerNow(), kRelaxed);
  }
  group.started.store(number, std::memory_order_release);
  slot.events.fetch_add(1, kRelaxed);
}

void CollectiveLog::Finished(uint64_t number) const {
  if (group_ < 0) return;
  LedgerSlot& slot = OwnSlot();
  LedgerCollective& one =
      slot.groups[group_].recent[number % LedgerGroup::kRecent];
  if (one.number.load(kRelaxed) == number) {
    one.done.store(1, std::memory_order_release);
  }
  slot.events.fetch_add(1, kRelaxed);
}

}  // namespace capstan
