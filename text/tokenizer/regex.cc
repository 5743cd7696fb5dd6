// SPDX-License-Identifier: Apache-2.0
//
// Translates Oniguruma's Ruby syntax (its doc/RE) to PCRE2's (pcre2pattern(3)).
// Accepts only what is known to mean the same after translation; the rest is an
// error, never a different split.
#include "text/tokenizer/regex.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/unicode_tables.h"

namespace capstan::tokenizer {
namespace {

constexpr size_t kFirstStackBytes = 32 << 10;
constexpr size_t kMaxStackBytes = 16 << 20;
// Known expressions have a few hundred.
constexpr size_t kMaxPatternBytes = 16 << 10;
// Of pcre2_match, where there is no JIT.
constexpr uint32_t kMaxHeapKiB = 64 << 10;
// Starts of a match that are tried before the clock is looked at: at first, and
// at most.
constexpr size_t kFewStarts = 16;
constexpr size_t kManyStarts = 1 << 20;
constexpr int64_t kShortMs = 4;

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
  pcre2_set_heap_limit(context_, kMaxHeapKiB);
  budget.Begin(0);
  // Without JIT no stack is needed.
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexState::~RegexState() {
  pcre2_match_data_free(match_);
  pcre2_match_context_free(context_);
  if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(
    absl::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the regular expression has ", pattern.size(),
                     " bytes, more than the limit of ", kMaxPatternBytes));
  }
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
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &error,
      &place, context.get());
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
  state->budget.Tick();
  // PCRE2 limits the work at each start, not that of all: where each looks at
  // the whole text, the time is quadratic.
  size_t starts = kFewStarts;
  int64_t ms = 0;
  while (true) {
    const size_t last =
        text.size() - from <= starts ? text.size() : from + starts;
    if (FindUpTo(text, from, last, state, begin, end)) return true;
    if (last == text.size()) return false;
    from = last + 1;
    while (from < text.size() && IsContinuation(text[from])) ++from;
    const int64_t now_ms = state->budget.CheckTime();
    if (starts > kFewStarts && now_ms - ms > kShortMs) {
      starts = kFewStarts;
    } else if (now_ms - ms <= kShortMs && starts < kManyStarts) {
      starts *= 2;
    }
    ms = now_ms;
  }
}

bool Regex::FindUpTo(absl::string_view text, size_t from, size_t last,
                     RegexState* state, size_t* begin, size_t* end) const {
  pcre2_set_offset_limit(state->context_, last);
  // PCRE2 rejects a null pointer even for an empty text.
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
      // An empty match at the end of the previous one, hence at `from_`.
      from_ += from_ < text_.size() ? CharacterBytes(text_[from_]) : 1;
      continue;
    }
    from_ = last_end_ = *end;
    return true;
  }
  from_ = text_.size() + 1;
  return false;
}

namespace {

// Unicode's word characters (UTS #18 annex C without the join controls).
constexpr char kWord[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// What Oniguruma, whose table of the first 256 characters is ISO 8859-1's,
// takes for one as well, but not in a class: superscripts and fractions.
constexpr char kLatin1Words[] = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// What Oniguruma's Unicode has of a property and PCRE2's hasn't, in PCRE2's
// syntax; of "" what it has of any category, which is every character that was
// assigned since. One letter stands for all categories that it begins.
std::string Added(absl::string_view name) {
  std::string ranges;
  for (const AddedProperty* added = kAddedProperties; added->name != nullptr;
       ++added) {
    const absl::string_view known = added->name;
    if (known != name && (name.size() > 1 || known.size() != 2 ||
                          !absl::StartsWith(known, name))) {
      continue;
    }
    int32_t at = 0;
    for (const int32_t* range = added->ranges; *range >= 0; range += 2) {
      at += range[0] + range[1];
      absl::StrAppendFormat(&ranges, "\\x{%x}-\\x{%x}", at - range[1], at - 1);
    }
  }
  return ranges;
}

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    // Options that hold for the whole expression.
    if (Skip("(?i)")) out_ = "(?i)";
    while (!AtEnd()) CAPSTAN_RETURN_IF_ERROR(One());
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return at_ == pattern_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool Skip(absl::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  void Copy(size_t bytes) {
    absl::StrAppend(&out_, pattern_.substr(at_, bytes));
    at_ += bytes;
  }
  template <typename... Parts>
  absl::Status Unsupported(const Parts&... what) const {
    return absl::UnimplementedError(
        absl::StrCat("the regular expression \"", pattern_, "\" has ", what...,
                     " at byte ", at_, ", which isn't supported"));
  }

  absl::Status One() {
    switch (Peek()) {
      case '\\':
        return Escape(/*in_class=*/false);
      case '[':
        return CopyClass();
      case '(':
        return Group();
      case '{':
        return Interval();
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  absl::Status Group() {
    if (Peek(1) == '*') return Unsupported("(*");
    if (Peek(1) != '?') {
      Copy(1);
      return absl::OkStatus();
    }
    for (absl::string_view known :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (pattern_.substr(at_, known.size()) == known) {
        Copy(known.size());
        return absl::OkStatus();
      }
    }
    return Unsupported("a group (?..)");
  }

  // {n}, {n,}, {n,m}, {,m}; otherwise a literal brace.
  absl::Status Interval() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < pattern_.size() && absl::ascii_isdigit(pattern_[end])) ++end;
      return end > begin;
    };
    const bool low = digits();
    const bool comma = end < pattern_.size() && pattern_[end] == ',';
    if (comma) ++end;
    const bool high = comma && digits();
    if (end >= pattern_.size() || pattern_[end] != '}' || !(low || high)) {
      out_ += "\\{";
      ++at_;
      return absl::OkStatus();
    }
    const absl::string_view inside = pattern_.substr(at_ + 1, end - at_ - 1);
    absl::StrAppend(&out_, "{", low ? "" : "0", inside, "}");
    at_ = end + 1;
    if (Peek() == '+' || (Peek() == '?' && !comma)) {
      return Unsupported("+ or ? behind {n}");
    }
    return absl::OkStatus();
  }

  absl::Status CopyClass() {
    Copy(1);
    if (Peek() == '^') Copy(1);
    if (Peek() == ']') return Unsupported("a class that begins with ]");
    while (!AtEnd()) {
      switch (Peek()) {
        case ']':
          Copy(1);
          return absl::OkStatus();
        case '[':
          return Unsupported("a class within a class");
        case '\\':
          CAPSTAN_RETURN_IF_ERROR(Escape(/*in_class=*/true));
          break;
        case '&':
          if (Peek(1) == '&') return Unsupported("an intersection of classes");
          Copy(1);
          break;
        default:
          Copy(1);
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the regular expression \"", pattern_, "\" has a [ without its ]"));
  }

  absl::Status Escape(bool in_class) {
    const char c = Peek(1);
    if (absl::StrContains("tnrfae", c)) {  // the same in both
      Copy(2);
      return absl::OkStatus();
    }
    const auto write = [this](absl::string_view text) {
      absl::StrAppend(&out_, text);
      at_ += 2;
      return absl::OkStatus();
    };
    switch (c) {
      case 's':
        return write("\\p{White_Space}");
      case 'S':
        return write("\\P{White_Space}");
      case 'd':
      case 'D':
      case 'w':
      case 'W': {
        const bool word = absl::ascii_tolower(c) == 'w';
        const std::string inside =
            word ? absl::StrCat(kWord, Added("L"), Added("M"), Added("Nd"))
                 : absl::StrCat("\\p{Nd}", Added("Nd"));
        const bool complement = absl::ascii_isupper(c);
        if (!in_class) {
          return write(
              Class(complement, word ? inside + kLatin1Words : inside));
        }
        if (complement) return Unsupported("\\W or \\D in a class");
        return write(inside);
      }
      case 'v':
        return write("\\x0b");
      case 'p':
      case 'P':
        return Property(in_class);
      case 'x':
        return Hexadecimal();
      case 'u':
        return Unicode();
      case 'A':
      case 'z':
        if (in_class) return Unsupported("\\A or \\z in a class");
        Copy(2);
        return absl::OkStatus();
      case '\0':
        return absl::InvalidArgumentError(absl::StrCat(
            "the regular expression \"", pattern_, "\" ends with a \\"));
      default:
        if (absl::ascii_isalnum(c)) {
          return Unsupported("\\", absl::string_view(&c, 1));
        }
        // PCRE2 takes any other escaped character literally.
        Copy(1 + CharacterBytes(c));
        return absl::OkStatus();
    }
  }

  static std::string Class(bool complement, absl::string_view inside) {
    return absl::StrCat(complement ? "[^" : "[", inside, "]");
  }

  // \p{Name}, \P{Name}, \p{^Name}: a general category ("Lu") or a script,
  // "sc:Han" in PCRE2 (where "Han" means script extensions).
  absl::Status Property(bool in_class) {
    const size_t end = pattern_.find('}', at_);
    if (Peek(2) != '{' || end == absl::string_view::npos) {
      return Unsupported("\\p without {..}");
    }
    absl::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const bool negated = !name.empty() && name[0] == '^';
    if (negated) name.remove_prefix(1);
    const bool category = !name.empty() && name.size() <= 2 &&
                          absl::StrContains("LMNPSZC", name[0]) &&
                          (name.size() == 1 || absl::ascii_islower(name[1]));
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](char c) {
          return absl::ascii_isalnum(c) || c == '_';
        })) {
      return Unsupported("this \\p{..}");
    }
    const bool complement = (Peek(1) == 'P') != negated;
    const std::string theirs =
        absl::StrCat("\\p{", category ? "" : "sc:", name, "}");
    if (name == "C" || name == "Cn") {
      if (in_class) return Unsupported("\\p{", name, "} in a class");
      // What is assigned now isn't in it any more.
      absl::StrAppend(&out_, complement ? "(?!" : "(?:", "(?![", Added(""),
                      "])", theirs, complement ? ")(?s:.)" : ")");
    } else if (!in_class) {
      out_ += Class(complement, theirs + Added(name));
    } else if (!complement) {
      out_ += theirs + Added(name);
    } else if (Added(name).empty()) {
      absl::StrAppend(&out_, "\\P", theirs.substr(2));
    } else {
      return Unsupported("\\P{", name, "} in a class");
    }
    at_ = end + 1;
    return absl::OkStatus();
  }

  // \xHH below 80 (above, it is a byte rather than a character), or \x{H..}.
  absl::Status Hexadecimal() {
    if (Peek(2) == '{') {
      const size_t end = pattern_.find('}', at_);
      if (end == absl::string_view::npos) return Unsupported("\\x{ without }");
      Copy(end + 1 - at_);
      return absl::OkStatus();
    }
    if (Peek(2) < '0' || Peek(2) > '7' || !absl::ascii_isxdigit(Peek(3))) {
      return Unsupported("\\x that is no ASCII character");
    }
    Copy(4);
    return absl::OkStatus();
  }

  absl::Status Unicode() {
    const absl::string_view digits = pattern_.substr(at_ + 2, 4);
    if (digits.size() != 4 ||
        !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit)) {
      return Unsupported("\\u without four digits");
    }
    absl::StrAppend(&out_, "\\x{", digits, "}");
    at_ += 6;
    return absl::OkStatus();
  }

  const absl::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> ToPcre2(absl::string_view pattern) {
  // The translation counts on whole characters.
  if (!IsUtf8(pattern)) {
    return absl::InvalidArgumentError("the regular expression isn't UTF-8");
  }
  return Translator(pattern).Run();
}

}  // namespace capstan::tokenizer
