// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/alignment.h"

#include <algorithm>

namespace capstan::tokenizer {

void Alignment::Keep(size_t bytes) {
  if (bytes == 0) return;
  if (runs_.empty() || !runs_.back().kept) {
    runs_.push_back({old_size_, new_size_, true});
  }
  old_size_ += bytes;
  new_size_ += bytes;
}

void Alignment::Change(size_t from, size_t to) {
  runs_.push_back({old_size_, new_size_, false});
  old_size_ += from;
  new_size_ += to;
}

size_t Alignment::Find(size_t place) const {
  const auto behind = std::upper_bound(
      runs_.begin(), runs_.end(), place,
      [](size_t p, const Run& run) { return p < run.new_begin; });
  // The first run begins at 0.
  return static_cast<size_t>(behind - runs_.begin()) - 1;
}

size_t Alignment::OldEnd(size_t run) const {
  return run + 1 < runs_.size() ? runs_[run + 1].old_begin : old_size_;
}

size_t Alignment::Begin(size_t place) const {
  if (runs_.empty() || place >= new_size_) return old_size_;
  const Run& run = runs_[Find(place)];
  return run.old_begin + (run.kept ? place - run.new_begin : 0);
}

size_t Alignment::End(size_t place) const {
  if (runs_.empty() || place == 0) return 0;
  const size_t index = Find(std::min(place, new_size_) - 1);
  const Run& run = runs_[index];
  return run.kept ? run.old_begin + (place - run.new_begin) : OldEnd(index);
}

void ToCaller(const Frame* frame, size_t* begin, size_t* end) {
  for (; frame->parent != nullptr; frame = frame->parent) {
    const size_t offset = frame->in_parent.data() - frame->parent->text.data();
    const size_t old_begin = frame->alignment->Begin(*begin);
    *end = offset + std::max(frame->alignment->End(*end), old_begin);
    *begin = offset + old_begin;
  }
}

}  // namespace capstan::tokenizer
