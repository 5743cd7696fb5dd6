// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_PATTERN_PATTERN_H_
#define CAPSTAN_TEXT_PATTERN_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// PCRE2's, for UTF-8.
struct pcre2_real_code_8;
struct pcre2_real_match_context_8;

namespace capstan {

// A regular expression in Python's syntax, as far as PCRE2's is the same, on
// UTF-8. Thread-safe. A search that costs too much is INVALID_ARGUMENT, with
// the pattern.
class Pattern {
 public:
  // INVALID_ARGUMENT, with the pattern and the place in it.
  static absl::StatusOr<std::unique_ptr<Pattern>> Compile(
      absl::string_view pattern);
  // A pattern of this program's own, which must be right. Its searches don't
  // fail. Never freed.
  static const Pattern& Constant(absl::string_view pattern);
  // Python's re.escape, for characters of ASCII.
  static std::string Escaped(absl::string_view text);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // Pairs of parentheses that capture.
  int64_t groups() const { return groups_; }

  // Python's re.findall: of each match its first group that isn't empty, or the
  // whole match of a pattern without groups ("" if all groups are empty).
  absl::StatusOr<std::vector<std::string>> FindAll(
      absl::string_view text) const;
  // Python's re.sub, with ${1} for what it writes as \1.
  absl::StatusOr<std::string> Replace(absl::string_view text,
                                      absl::string_view with) const;
  absl::StatusOr<std::string> Remove(absl::string_view text) const {
    return Replace(text, "");
  }

 private:
  Pattern(pcre2_real_code_8* code, pcre2_real_code_8* for_utf8,
          absl::string_view text);
  // Calls `visit` with the ends of each match and its groups. An empty match
  // may follow another one directly, as in Python since 3.7.
  absl::Status ForEach(
      absl::string_view text,
      const std::function<void(const size_t* ends)>& visit) const;
  absl::Status SearchError(int error) const;

  pcre2_real_code_8* const code_;
  // The same for texts that are known to be UTF-8: the other one's searches
  // look at the whole rest of the text, which is quadratic in its matches.
  pcre2_real_code_8* const for_utf8_;
  const std::string text_;  // the pattern
  pcre2_real_match_context_8* const context_;
  uint32_t groups_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TEXT_PATTERN_PATTERN_H_
