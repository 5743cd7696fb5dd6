// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/text_scores.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan::evaluate {
namespace {

// Steps of one search; PCRE2's own default is ten times as many.
constexpr uint32_t kMostSteps = 1'000'000;

PCRE2_SPTR Bytes(absl::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string MessageOf(int error) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(error, message, sizeof(message));
  return reinterpret_cast<const char*>(message);
}

size_t AfterCharacter(absl::string_view text, size_t at) {
  ++at;
  while (at < text.size() && (text[at] & 0xC0) == 0x80) ++at;
  return at;
}

std::string Mapped(absl::string_view text, utf8proc_int32_t (*of)(int32_t)) {
  std::string mapped;
  while (!text.empty()) {
    utf8proc_int32_t character = 0;
    const utf8proc_ssize_t size = utf8proc_iterate(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
        static_cast<utf8proc_ssize_t>(text.size()), &character);
    if (size < 1) {  // no UTF-8
      mapped.push_back(text[0]);
      text.remove_prefix(1);
      continue;
    }
    utf8proc_uint8_t bytes[4];
    mapped.append(reinterpret_cast<const char*>(bytes),
                  utf8proc_encode_char(of(character), bytes));
    text.remove_prefix(size);
  }
  return mapped;
}

// The words of `text`, as numbers that equal words share.
std::vector<int> Words(absl::string_view text,
                       std::unordered_map<std::string, int>* numbers) {
  std::vector<int> words;
  std::string word;
  const auto end = [&] {
    if (word.empty()) return;
    words.push_back(numbers->emplace(word, static_cast<int>(numbers->size()))
                        .first->second);
    word.clear();
  };
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      word.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    } else {
      end();
    }
  }
  end();
  return words;
}

int64_t LongestCommonSubsequence(const std::vector<int>& a,
                                 const std::vector<int>& b) {
  // Row by row of the usual table.
  std::vector<int64_t> row(b.size() + 1, 0);
  for (const int word : a) {
    int64_t diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t above = row[j];
      row[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::Compile(
    absl::string_view pattern) {
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* const code = pcre2_compile(
      Bytes(pattern), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
      &error, &place, nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the regular expression \"", pattern, "\" is wrong at character ",
        place, ": ", MessageOf(error)));
  }
  return std::unique_ptr<Pattern>(new Pattern(code, pattern));
}

const Pattern& Pattern::Constant(absl::string_view pattern) {
  Pattern* const made = Compile(pattern).value().release();
  // Its callers take its results for granted.
  pcre2_set_match_limit(made->context_, UINT32_MAX);
  return *made;
}

std::string Pattern::Escaped(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) {
      escaped.push_back('\\');
    }
    escaped.push_back(c);
  }
  return escaped;
}

Pattern::Pattern(pcre2_code* code, absl::string_view text)
    : code_(code), text_(text), context_(pcre2_match_context_create(nullptr)) {
  pcre2_set_match_limit(context_, kMostSteps);
  pcre2_pattern_info(code_, PCRE2_INFO_CAPTURECOUNT, &groups_);
}

Pattern::~Pattern() {
  pcre2_match_context_free(context_);
  pcre2_code_free(code_);
}

absl::StatusOr<std::vector<std::string>> Pattern::FindAll(
    absl::string_view text) const {
  std::vector<std::string> found;
  CAPSTAN_RETURN_IF_ERROR(ForEach(text, [&](const size_t* at) {
    std::string value;
    if (groups_ == 0) value = std::string(text.substr(at[0], at[1] - at[0]));
    for (uint32_t g = 1; g <= groups_ && value.empty(); ++g) {
      if (at[2 * g] == PCRE2_UNSET) continue;
      value = std::string(text.substr(at[2 * g], at[2 * g + 1] - at[2 * g]));
    }
    found.push_back(std::move(value));
  }));
  return found;
}

absl::StatusOr<std::string> Pattern::Replace(absl::string_view text,
                                             absl::string_view with) const {
  std::string left;
  size_t from = 0;
  CAPSTAN_RETURN_IF_ERROR(ForEach(text, [&](const size_t* at) {
    absl::StrAppend(&left, text.substr(from, at[0] - from));
    for (size_t i = 0; i < with.size(); ++i) {
      // ${1}
      if (absl::StartsWith(with.substr(i), "${") && i + 3 < with.size()) {
        const size_t g = static_cast<size_t>(with[i + 2] - '0');
        i += 3;
        if (g <= groups_ && at[2 * g] != PCRE2_UNSET) {
          absl::StrAppend(&left,
                          text.substr(at[2 * g], at[2 * g + 1] - at[2 * g]));
        }
      } else {
        left.push_back(with[i]);
      }
    }
    from = at[1];
  }));
  absl::StrAppend(&left, text.substr(from));
  return left;
}

absl::Status Pattern::ForEach(
    absl::string_view text,
    const std::function<void(const size_t* ends)>& visit) const {
  absl::Status status;
  pcre2_match_data* const match =
      pcre2_match_data_create_from_pattern(code_, nullptr);
  size_t from = 0;
  uint32_t options = 0;
  while (from <= text.size()) {
    const int count = pcre2_match(code_, Bytes(text), text.size(), from,
                                  options, match, context_);
    if (count <= 0) {
      // After an empty match: what isn't empty at its place, else go on.
      if (count != PCRE2_ERROR_NOMATCH) status = SearchError(count);
      if (count != PCRE2_ERROR_NOMATCH || options == 0) break;
      options = 0;
      from = AfterCharacter(text, from);
      continue;
    }
    const PCRE2_SIZE* const at = pcre2_get_ovector_pointer(match);
    if (at[1] < at[0] || at[1] < from) break;  // \K within a lookahead
    visit(at);
    from = at[1];
    options =
        at[0] == at[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : uint32_t{0};
  }
  pcre2_match_data_free(match);
  return status;
}

absl::Status Pattern::SearchError(int error) const {
  return absl::InvalidArgumentError(
      absl::StrCat("the regular expression \"", text_,
                   "\" can't be searched for in this text: ", MessageOf(error),
                   "; write one that tries less"));
}

std::string Lower(absl::string_view text) {
  return Mapped(text, utf8proc_tolower);
}
std::string Upper(absl::string_view text) {
  return Mapped(text, utf8proc_toupper);
}

absl::StatusOr<std::string> Rewritten(absl::string_view text,
                                      const ExactMatchOptions& options) {
  std::string result(text);
  for (const auto& pattern : options.ignore) {
    CAPSTAN_ASSIGN_OR_RETURN(result, pattern->Remove(result));
  }
  if (options.ignore_case) result = Lower(result);
  const auto erase = [&result](bool (*drop)(unsigned char)) {
    result.erase(std::remove_if(result.begin(), result.end(),
                                [drop](char c) { return drop(c); }),
                 result.end());
  };
  if (options.all_punctuation) {
    static const Pattern& punctuation = Pattern::Constant("\\p{P}");
    CAPSTAN_ASSIGN_OR_RETURN(result, punctuation.Remove(result));
  } else if (options.ignore_punctuation) {
    erase(absl::ascii_ispunct);
  }
  if (options.ignore_numbers) erase(absl::ascii_isdigit);
  return result;
}

absl::StatusOr<bool> ExactMatch(absl::string_view text,
                                absl::string_view reference,
                                const ExactMatchOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string a, Rewritten(text, options));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string b, Rewritten(reference, options));
  return a == b;
}

int64_t CountWords(absl::string_view text) {
  static const Pattern& space = Pattern::Constant("\\s+");
  return static_cast<int64_t>(space.FindAll(text).value().size()) + 1;
}

double RougeL(absl::string_view text, absl::string_view reference) {
  std::unordered_map<std::string, int> numbers;
  const std::vector<int> words = Words(text, &numbers);
  const std::vector<int> wanted = Words(reference, &numbers);
  if (words.empty() || wanted.empty()) return 0.0;
  const double common =
      static_cast<double>(LongestCommonSubsequence(words, wanted));
  const double precision = common / static_cast<double>(words.size());
  const double recall = common / static_cast<double>(wanted.size());
  if (precision + recall == 0.0) return 0.0;
  return 2.0 * precision * recall / (precision + recall);
}

}  // namespace capstan::evaluate
