// SPDX-License-Identifier: Apache-2.0
#include "inference/decode/stop_strings.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace capstan {

size_t StopStrings::longest() const {
  size_t longest = 1;
  for (const std::string& stop : stops_) {
    longest = std::max(longest, stop.size());
  }
  return longest;
}

size_t StopStrings::EndOf(absl::string_view text) const {
  size_t end = text.size();
  for (const std::string& stop : stops_) {
    if (!stop.empty()) end = std::min(end, text.find(stop));
  }
  return end;
}

size_t StopStrings::Certain(absl::string_view text) const {
  size_t certain = EndOf(text);
  if (certain < text.size()) return certain;
  for (const std::string& stop : stops_) {
    size_t length = std::min(stop.size(), text.size());
    while (length > 0 &&
           !absl::EndsWith(text, absl::string_view(stop).substr(0, length))) {
      --length;
    }
    certain = std::min(certain, text.size() - length);
  }
  return certain;
}

}  // namespace capstan
