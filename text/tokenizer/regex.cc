// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/regex.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/utf8.h"

namespace capstan {
namespace tokenizer {
namespace {

constexpr size_t kFirstStackBytes = 32 << 10;
constexpr size_t kMaxStackBytes = 16 << 20;

std::string ErrorText(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

RegexState::RegexState()
    : match_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(
          pcre2_jit_stack_create(kFirstStackBytes, kMaxStackBytes, nullptr)) {
  if (match_ == nullptr || context_ == nullptr) throw std::bad_alloc();
  // Without JIT there is no such stack, and none is needed.
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexState::~RegexState() {
  pcre2_match_data_free(match_);
  pcre2_match_context_free(context_);
  if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(
    absl::string_view pattern) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string translated, ToPcre2(pattern));
  int error = 0;
  PCRE2_SIZE place = 0;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)>
      context(pcre2_compile_context_create(nullptr),
              pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code* const code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &place, context.get());
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the regular expression \"", pattern,
                     "\" can't be compiled: ", ErrorText(error)));
  }
  const bool jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  return std::unique_ptr<Regex>(new Regex(std::string(pattern), code, jit));
}

Regex::~Regex() { pcre2_code_free(code_); }

bool Regex::Find(absl::string_view text, size_t from, RegexState* state,
                 size_t* begin, size_t* end) const {
  // PCRE2 takes no null pointer for an empty text.
  const auto subject =
      reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
  const int found =
      jit_ ? pcre2_jit_match(code_, subject, text.size(), from, 0,
                             state->match_, state->context_)
           : pcre2_match(code_, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                         state->match_, state->context_);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw std::runtime_error(
        absl::StrCat("the tokenizer's regular expression \"", pattern_,
                     "\" can't be matched against a text: ", ErrorText(found)));
  }
  const PCRE2_SIZE* const places = pcre2_get_ovector_pointer(state->match_);
  *begin = places[0];
  *end = places[1];
  return true;
}

bool RegexMatches::Next(size_t* begin, size_t* end) {
  while (from_ <= text_.size()) {
    if (!regex_.Find(text_, from_, state_, begin, end)) break;
    if (*begin == *end && *end == last_end_) {
      // It is where the last one ended, so `from_` is too.
      from_ += from_ < text_.size() ? CharacterBytes(text_[from_]) : 1;
      continue;
    }
    from_ = last_end_ = *end;
    return true;
  }
  from_ = text_.size() + 1;
  return false;
}

}  // namespace tokenizer
}  // namespace capstan
