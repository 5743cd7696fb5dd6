// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_DECODE_STOP_STRINGS_H_
#define CAPSTAN_INFERENCE_DECODE_STOP_STRINGS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

// Strings before which a written text ends. Empty ones don't count.
class StopStrings {
 public:
  StopStrings() = default;
  explicit StopStrings(std::vector<std::string> stops)
      : stops_(std::move(stops)) {}

  bool empty() const { return stops_.empty(); }
  size_t longest() const;  // at least 1
  // Where the first of them begins in `text`; its size if none is there.
  size_t EndOf(absl::string_view text) const;
  bool EndIn(absl::string_view text) const { return EndOf(text) < text.size(); }
  // How much of `text` stays, whatever follows: its size, less an end with
  // which one of them begins, or EndOf.
  size_t Certain(absl::string_view text) const;

 private:
  std::vector<std::string> stops_;
};

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_DECODE_STOP_STRINGS_H_
