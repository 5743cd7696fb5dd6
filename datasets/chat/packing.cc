// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace capstan {
namespace chat {
namespace {

// Longest first; of one length, in their order. A counting sort.
std::vector<uint32_t> ByLength(absl::Span<const uint32_t> lengths,
                               uint32_t capacity) {
  std::vector<uint64_t> place(capacity + 2, 0);
  for (uint32_t length : lengths) ++place[capacity - length + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<uint32_t> order(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    order[place[capacity - lengths[i]]++] = static_cast<uint32_t>(i);
  }
  return order;
}

// The pack of each item; *count is how many packs there are.
std::vector<uint32_t> Assign(absl::Span<const uint32_t> lengths,
                             uint32_t capacity, uint32_t* count) {
  std::vector<uint32_t> pack(lengths.size());
  std::vector<std::vector<uint32_t>> with_room(capacity + 1);
  std::set<uint32_t> rooms;  // those of which there are packs
  *count = 0;
  for (uint32_t item : ByLength(lengths, capacity)) {
    const auto best = rooms.lower_bound(lengths[item]);
    uint32_t room = capacity;
    if (best == rooms.end()) {
      pack[item] = (*count)++;
    } else {
      room = *best;
      pack[item] = with_room[room].back();
      with_room[room].pop_back();
      if (with_room[room].empty()) rooms.erase(best);
    }
    room -= lengths[item];
    if (room == 0) continue;
    if (with_room[room].empty()) rooms.insert(room);
    with_room[room].push_back(pack[item]);
  }
  return pack;
}

}  // namespace

Packs PackBestFit(absl::Span<const uint32_t> lengths, uint32_t capacity) {
  uint32_t count = 0;
  std::vector<uint32_t> pack = Assign(lengths, capacity, &count);
  // Numbered anew, by their first items.
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> number(count, kNone);
  uint32_t next = 0;
  Packs packs;
  packs.begins.assign(count + 1, 0);
  for (uint32_t& p : pack) {
    if (number[p] == kNone) number[p] = next++;
    p = number[p];
    ++packs.begins[p + 1];
  }
  std::partial_sum(packs.begins.begin(), packs.begins.end(),
                   packs.begins.begin());
  std::vector<uint64_t> place(packs.begins.begin(), packs.begins.end() - 1);
  packs.items.resize(pack.size());
  for (size_t i = 0; i < pack.size(); ++i) {
    packs.items[place[pack[i]]++] = static_cast<uint32_t>(i);
  }
  return packs;
}

}  // namespace chat
}  // namespace capstan
