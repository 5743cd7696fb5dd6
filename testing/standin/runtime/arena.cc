// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace capstan::standin {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t Pages(int64_t bytes) {
  return (static_cast<uint64_t>(bytes) + kPage - 1) / kPage * kPage;
}

}  // namespace

Arena::Arena(int64_t reserved, int64_t limit, int protection)
    : reserved_(Pages(reserved)), limit_(limit) {
  file_ = memfd_create("standin", MFD_CLOEXEC);
  void* seen = MAP_FAILED;
  void* view = MAP_FAILED;
  if (file_ >= 0 && ftruncate(file_, static_cast<off_t>(reserved_)) == 0) {
    constexpr int kFlags = MAP_SHARED | MAP_NORESERVE;
    seen = mmap(nullptr, reserved_, protection, kFlags, file_, 0);
    view = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, kFlags, file_, 0);
  }
  if (seen == MAP_FAILED || view == MAP_FAILED) {
    std::perror("stand-in device: can't reserve its address space");
    std::abort();
  }
  madvise(view, reserved_, MADV_DONTDUMP);
  madvise(seen, reserved_, MADV_DONTDUMP);
  begin_ = reinterpret_cast<uintptr_t>(seen);
  view_ = static_cast<char*>(view);
  free_[0] = reserved_;
}

bool Arena::Take(uint64_t from, uint64_t size, uint64_t* offset) {
  auto range = free_.upper_bound(from);
  if (range != free_.begin()) --range;  // `from` may lie in it
  for (; range != free_.end(); ++range) {
    const uint64_t begin = std::max(range->first, from);
    const uint64_t end = range->first + range->second;
    if (begin + size > end) continue;
    if (begin > range->first) {
      range->second = begin - range->first;
    } else {
      free_.erase(range);
    }
    if (begin + size < end) free_[begin + size] = end - begin - size;
    *offset = begin;
    return true;
  }
  return false;
}

void* Arena::Allocate(int64_t bytes) {
  const uint64_t size = Pages(bytes);
  if (used_ + static_cast<int64_t>(size) > limit_) return nullptr;
  // From the cursor on, or else from the start.
  uint64_t offset = 0;
  if (!Take(cursor_, size, &offset) && !Take(0, size, &offset)) return nullptr;
  cursor_ = offset + size;
  allocated_[offset] = bytes;
  used_ += static_cast<int64_t>(size);
  return reinterpret_cast<void*>(begin_ + offset);
}

int64_t Arena::Free(void* begin) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(begin) - begin_;
  const auto found = allocated_.find(offset);
  if (found == allocated_.end()) return -1;
  const int64_t bytes = found->second;
  const uint64_t size = Pages(bytes);
  allocated_.erase(found);
  used_ -= static_cast<int64_t>(size);
  // Gives the memory back to the machine, not only the addresses.
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(offset), static_cast<off_t>(size));
  GiveBack(offset, size);
  return bytes;
}

void Arena::GiveBack(uint64_t offset, uint64_t size) {
  auto range = free_.emplace(offset, size).first;
  const auto next = std::next(range);
  if (next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second == range->first) {
      before->second += range->second;
      free_.erase(range);
    }
  }
}

void* Arena::Reserve(int64_t bytes) {
  const uint64_t size = Pages(bytes);
  uint64_t offset = 0;
  if (!Take(cursor_, size, &offset) && !Take(0, size, &offset)) return nullptr;
  cursor_ = offset + size;
  reserved_parts_[offset] = size;
  return reinterpret_cast<void*>(begin_ + offset);
}

bool Arena::Unreserve(void* begin) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(begin) - begin_;
  const auto found = reserved_parts_.find(offset);
  if (found == reserved_parts_.end()) return false;
  const uint64_t size = found->second;
  const auto mapped = mapped_.lower_bound(offset);
  if (mapped != mapped_.end() && mapped->first < offset + size) return false;
  reserved_parts_.erase(found);
  GiveBack(offset, size);
  return true;
}

bool Arena::Use(int64_t bytes) {
  if (used_ + bytes > limit_) return false;
  used_ += bytes;
  return true;
}

bool Arena::Map(const void* begin, int64_t bytes) {
  uint64_t offset = reinterpret_cast<uintptr_t>(begin) - begin_;
  uint64_t end = offset + Pages(bytes);
  auto part = reserved_parts_.upper_bound(offset);
  if (part == reserved_parts_.begin()) return false;
  --part;
  if (end > part->first + part->second) return false;
  auto next = mapped_.lower_bound(offset);
  if (next != mapped_.end() && next->first < end) return false;
  if (next != mapped_.begin()) {
    const auto before = std::prev(next);
    const uint64_t before_end = before->first + before->second;
    if (before_end > offset) return false;
    if (before_end == offset && before->first >= part->first) {
      offset = before->first;
    }
  }
  if (next != mapped_.end() && next->first == end &&
      end < part->first + part->second) {
    end += next->second;
    mapped_.erase(next);
  }
  mapped_[offset] = end - offset;
  return true;
}

bool Arena::Unmap(const void* begin, int64_t bytes) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(begin) - begin_;
  const uint64_t size = Pages(bytes), end = offset + size;
  auto found = mapped_.upper_bound(offset);
  if (found == mapped_.begin()) return false;
  --found;
  const uint64_t first = found->first, last = first + found->second;
  if (end > last) return false;
  mapped_.erase(found);
  if (first < offset) mapped_[first] = offset - first;
  if (end < last) mapped_[end] = last - end;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(offset), static_cast<off_t>(size));
  return true;
}

bool Arena::Find(const void* p, uintptr_t* begin, int64_t* bytes) const {
  if (!Contains(p)) return false;
  const uint64_t offset = reinterpret_cast<uintptr_t>(p) - begin_;
  const auto find = [&](const auto& parts) {
    auto next = parts.upper_bound(offset);
    if (next == parts.begin()) return false;
    --next;
    const auto size = static_cast<int64_t>(next->second);
    if (offset >= next->first + static_cast<uint64_t>(size)) return false;
    *begin = begin_ + next->first;
    *bytes = size;
    return true;
  };
  return find(allocated_) || find(mapped_);
}

}  // namespace capstan::standin
