// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_BLOCK_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_BLOCK_H_

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace capstan::grpo {

// What the last ```-block of a text holds, or the text if it has none. A block
// that isn't closed ends with the text.
inline absl::string_view LastBlock(absl::string_view text) {
  absl::string_view last = text;
  bool inside = false;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const size_t next = end == absl::string_view::npos ? text.size() : end + 1;
    if (absl::StartsWith(text.substr(at), "```")) {
      if (inside) last = text.substr(begin, at - begin);
      inside = !inside;
      begin = next;
    }
    at = next;
  }
  return inside ? text.substr(begin) : last;
}

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_BLOCK_H_
