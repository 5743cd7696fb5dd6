// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/races.h"

#include <algorithm>

namespace capstan::standin {
namespace {

bool Before(const Access& access, const Clock& clock) {
  return static_cast<size_t>(access.stream) < clock.size() &&
         clock[access.stream] >= access.time;
}

void Add(const Conflict& conflict, std::vector<Conflict>* conflicts) {
  for (const Conflict& other : *conflicts) {
    if (other.earlier.name == conflict.earlier.name &&
        other.earlier.stream == conflict.earlier.stream &&
        other.earlier_touch == conflict.earlier_touch) {
      return;
    }
  }
  conflicts->push_back(conflict);
}

}  // namespace

void Join(const Clock& from, Clock* into) {
  if (into->size() < from.size()) into->resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    (*into)[i] = std::max((*into)[i], from[i]);
  }
}

void AccessMap::Split(uintptr_t at) {
  auto next = cells_.upper_bound(at);
  if (next == cells_.begin()) return;
  auto cell = std::prev(next);
  if (cell->first == at || cell->second.end <= at) return;
  cells_.emplace_hint(next, at, cell->second);
  cell->second.end = at;
}

std::vector<Conflict> AccessMap::Note(uintptr_t begin, uintptr_t end,
                                      Touch touch, const Access& access,
                                      const Clock& clock) {
  std::vector<Conflict> conflicts;
  if (begin >= end) return conflicts;
  Split(begin);
  Split(end);
  uintptr_t at = begin;
  auto cell = cells_.lower_bound(begin);
  while (at < end) {
    if (cell == cells_.end() || cell->first > at) {
      // Nobody has touched these bytes so far.
      const uintptr_t gap_end =
          cell == cells_.end() ? end : std::min(end, cell->first);
      Cell fresh;
      fresh.end = gap_end;
      cell = cells_.emplace_hint(cell, at, fresh);
    }
    Cell& bytes = cell->second;
    const bool writes = touch != Touch::kRead;
    if (bytes.write.name != nullptr) {
      const bool ordered = Before(bytes.write, clock);
      const bool freed = bytes.write_touch == Touch::kFree &&
                         touch != Touch::kAllocate && touch != Touch::kFree;
      if (!ordered || freed) {
        Add({touch, bytes.write, bytes.write_touch, freed && ordered, at},
            &conflicts);
      }
    }
    if (writes) {
      for (const Access& read : bytes.reads) {
        if (!Before(read, clock)) {
          Add({touch, read, Touch::kRead, false, at}, &conflicts);
        }
      }
    } else {
      auto& reads = bytes.reads;
      reads.erase(std::remove_if(
                      reads.begin(), reads.end(),
                      [&](const Access& read) { return Before(read, clock); }),
                  reads.end());
      reads.push_back(access);
    }
    at = bytes.end;
    ++cell;
  }
  if (touch != Touch::kRead) {
    Forget(begin, end);
    Cell written;
    written.end = end;
    written.write = access;
    written.write_touch = touch;
    cells_.emplace(begin, written);
  }
  return conflicts;
}

void AccessMap::Forget(uintptr_t begin, uintptr_t end) {
  Split(begin);
  Split(end);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
}

}  // namespace capstan::standin
