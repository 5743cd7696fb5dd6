// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_REGEX_H_
#define CAPSTAN_TEXT_TOKENIZER_REGEX_H_

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/budget.h"

namespace capstan::tokenizer {

// Per-thread scratch for running any regular expression, and what the text may
// take.
class RegexState {
 public:
  RegexState();
  ~RegexState();
  RegexState(const RegexState&) = delete;
  RegexState& operator=(const RegexState&) = delete;

  Budget budget;

 private:
  friend class Regex;
  pcre2_match_data* const match_;
  pcre2_match_context* const context_;
  pcre2_jit_stack* const stack_;
};

// A regular expression as in tokenizer.json files: Oniguruma's Ruby syntax on
// UTF-8, translated by ToPcre2 and run by PCRE2. Thread-safe.
class Regex {
 public:
  // UNIMPLEMENTED for syntax that means different things to the two libraries;
  // INVALID_ARGUMENT for invalid expressions.
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(
      absl::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  const std::string& pattern() const { return pattern_; }

  // The leftmost match that begins at or after byte `from` of `text`, which
  // must be UTF-8; false if there is none. Throws std::runtime_error if PCRE2
  // gives up (a pattern of exponential cost), or beyond the state's budget.
  bool Find(absl::string_view text, size_t from, RegexState* state,
            size_t* begin, size_t* end) const;

 private:
  // Of matches that begin in [from, last].
  bool FindUpTo(absl::string_view text, size_t from, size_t last,
                RegexState* state, size_t* begin, size_t* end) const;

  Regex(std::string pattern, pcre2_code* code, bool jit)
      : pattern_(std::move(pattern)), code_(code), jit_(jit) {}

  const std::string pattern_;
  pcre2_code* const code_;
  const bool jit_;
};

// Iterates over the matches of `regex` as Hugging Face's tokenizers do: skips
// an empty match at the end of the previous one.
class RegexMatches {
 public:
  RegexMatches(const Regex& regex, absl::string_view text, RegexState* state)
      : regex_(regex), text_(text), state_(state) {}
  bool Next(size_t* begin, size_t* end);

 private:
  const Regex& regex_;
  const absl::string_view text_;
  RegexState* const state_;
  size_t from_ = 0;
  size_t last_end_ = static_cast<size_t>(-1);
};

// The expression in PCRE2's syntax (with UTF, UCP and MULTILINE set).
absl::StatusOr<std::string> ToPcre2(absl::string_view pattern);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_REGEX_H_
