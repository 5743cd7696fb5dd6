// SPDX-License-Identifier: Apache-2.0
#include "text/pattern/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <simdjson.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
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

}  // namespace

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::Compile(
    absl::string_view pattern) {
  int error = 0;
  PCRE2_SIZE place = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  const auto compile = [&](uint32_t more) {
    return pcre2_compile(Bytes(pattern), pattern.size(), kOptions | more,
                         &error, &place, nullptr);
  };
  pcre2_code* const code = compile(PCRE2_MATCH_INVALID_UTF);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the regular expression \"", pattern, "\" is wrong at character ",
        place, ": ", MessageOf(error)));
  }
  pcre2_code* const for_utf8 = compile(0);
  return std::unique_ptr<Pattern>(new Pattern(code, for_utf8, pattern));
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

Pattern::Pattern(pcre2_code* code, pcre2_code* for_utf8, absl::string_view text)
    : code_(code),
      for_utf8_(for_utf8),
      text_(text),
      context_(pcre2_match_context_create(nullptr)) {
  pcre2_set_match_limit(context_, kMostSteps);
  pcre2_pattern_info(code_, PCRE2_INFO_CAPTURECOUNT, &groups_);
}

Pattern::~Pattern() {
  pcre2_match_context_free(context_);
  pcre2_code_free(code_);
  pcre2_code_free(for_utf8_);
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
  const bool utf8 =
      for_utf8_ != nullptr && simdjson::validate_utf8(text.data(), text.size());
  const pcre2_code* const code = utf8 ? for_utf8_ : code_;
  const uint32_t checked = utf8 ? PCRE2_NO_UTF_CHECK : 0;
  size_t from = 0;
  uint32_t options = 0;
  while (from <= text.size()) {
    const int count = pcre2_match(code, Bytes(text), text.size(), from,
                                  options | checked, match, context_);
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

}  // namespace capstan
