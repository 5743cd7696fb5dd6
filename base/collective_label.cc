// SPDX-License-Identifier: Apache-2.0
#include "base/collective_label.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace capstan {
namespace {

thread_local const CollectiveLabel* current = nullptr;

}  // namespace

CollectiveLabel::CollectiveLabel(absl::string_view text) : outer_(current) {
  Append(text);
  current = this;
}

CollectiveLabel::CollectiveLabel(absl::string_view kind, int64_t number)
    : CollectiveLabel(kind) {
  char digits[24] = {' '};
  const auto end =
      std::to_chars(digits + 1, digits + sizeof(digits), number).ptr;
  Append(absl::string_view(digits, static_cast<size_t>(end - digits)));
}

CollectiveLabel::~CollectiveLabel() { current = outer_; }

absl::string_view CollectiveLabel::Current() {
  if (current == nullptr) return "";
  return absl::string_view(current->text_, static_cast<size_t>(current->size_));
}

void CollectiveLabel::Append(absl::string_view text) {
  const int taken = std::min(static_cast<int>(text.size()), kMaxBytes - size_);
  std::memcpy(text_ + size_, text.data(), static_cast<size_t>(taken));
  size_ += taken;
}

}  // namespace capstan
