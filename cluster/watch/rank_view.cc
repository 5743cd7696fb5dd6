// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/rank_view.h"

#include <algorithm>
#include <cstring>

namespace capstan {
namespace {

struct ReportHeader {
  uint64_t magic;
  uint64_t view_bytes;
  uint64_t count;
  uint64_t ending;
};

constexpr uint64_t kMagic = 0x3144454c54504143;  // "CAPTLED1"

template <size_t kBytes>
void Copy(const std::string& text, char (&to)[kBytes]) {
  std::memset(to, 0, kBytes);
  std::memcpy(to, text.data(), std::min(text.size(), kBytes - 1));
}

template <size_t kBytes>
void Terminate(char (&text)[kBytes]) {
  text[kBytes - 1] = '\0';
}

// A collective may be overwritten meanwhile: then there is none.
CollectiveView ViewOf(const LedgerGroup& group, uint64_t number,
                      int64_t now_ns) {
  CollectiveView view;
  if (number == 0) return view;
  const LedgerCollective& one = group.recent[number % LedgerGroup::kRecent];
  if (one.number.load(std::memory_order_acquire) != number) return view;
  view.bytes = one.bytes.load(std::memory_order_relaxed);
  view.age_ns = now_ns - one.since_ns.load(std::memory_order_relaxed);
  Copy(one.name.Get(), view.name);
  Copy(one.label.Get(), view.label);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (one.number.load(std::memory_order_relaxed) == number) {
    view.number = number;
  }
  return view;
}

GroupView ViewOf(const LedgerGroup& group, int64_t now_ns) {
  GroupView view;
  view.sees_ends = group.sees_ends.load() != 0;
  view.started = group.started.load(std::memory_order_acquire);
  view.issued = group.issued.load(std::memory_order_acquire);
  if (!view.sees_ends) {
    view.current = ViewOf(group, view.issued, now_ns);
    return view;
  }
  constexpr uint64_t kRecent = LedgerGroup::kRecent;
  uint64_t number = view.issued > kRecent ? view.issued - kRecent + 1 : 1;
  if (group.in_order.load() != 0) number = std::max(number, view.started);
  for (; number <= view.started && view.current.number == 0; ++number) {
    if (group.recent[number % kRecent].done.load() != 0) continue;
    view.current = ViewOf(group, number, now_ns);
  }
  return view;
}

}  // namespace

RankView ViewOf(const LedgerSlot& slot, int64_t now_ns) {
  RankView view;
  view.rank = slot.rank.load();
  view.pid = slot.pid.load();
  view.start_ticks = slot.start_ticks.load();
  view.alarm = slot.alarm.load() != 0;
  Copy(slot.activity.Get(), view.activity);
  Copy(slot.phase.Get(), view.phase);
  view.step = slot.step.load();
  const int64_t since = slot.activity_since_ns.load();
  const int64_t from = std::max(since, slot.counts_from_ns.load());
  if (since != 0) view.activity_ns = std::max<int64_t>(0, now_ns - from);
  view.phase_ns = now_ns - slot.phase_since_ns.load();
  view.limit_ns = slot.limit_ns.load();
  view.watched_ns = now_ns - slot.watched_ns.load();
  view.moves = slot.events.load() + slot.progress.load();
  for (int g = 0; g < kLedgerGroups; ++g) {
    view.groups[g] = ViewOf(slot.groups[g], now_ns);
  }
  return view;
}

bool HasAlarm(const HostReport& report) {
  return report.ending ||
         std::any_of(report.ranks.begin(), report.ranks.end(),
                     [](const RankView& view) { return view.InAlarm(); });
}

std::string Encode(const HostReport& report) {
  const ReportHeader header = {kMagic, sizeof(RankView), report.count,
                               report.ending ? uint64_t{1} : uint64_t{0}};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const RankView& view : report.ranks) {
    bytes.append(reinterpret_cast<const char*>(&view), sizeof(view));
  }
  return bytes;
}

absl::optional<HostReport> ParseHostReport(absl::string_view bytes,
                                           size_t ranks) {
  ReportHeader header;
  if (bytes.size() != sizeof(header) + ranks * sizeof(RankView)) {
    return absl::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.view_bytes != sizeof(RankView)) {
    return absl::nullopt;
  }
  HostReport report;
  report.count = header.count;
  report.ending = header.ending != 0;
  report.ranks.resize(ranks);
  std::memcpy(static_cast<void*>(report.ranks.data()),
              bytes.data() + sizeof(header), ranks * sizeof(RankView));
  for (RankView& view : report.ranks) {
    Terminate(view.activity);
    Terminate(view.phase);
    for (GroupView& group : view.groups) {
      Terminate(group.current.name);
      Terminate(group.current.label);
    }
  }
  return report;
}

}  // namespace capstan
