// SPDX-License-Identifier: Apache-2.0
//
// Normalization forms, by utf8proc.
#include <utf8proc.h>

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

utf8proc_option_t Options(UnicodeForm form) {
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const bool compatible =
      form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  return static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compatible ? UTF8PROC_COMPAT : 0));
}

// Characters below it are normalized, don't combine with preceding characters,
// and combine only with following characters at or above it.
uint32_t FirstUnstable(UnicodeForm form) {
  return form == UnicodeForm::kNfc   ? 0x300
         : form == UnicodeForm::kNfd ? 0xc0
                                     : 0xa0;
}

// Whether a character, or its decomposition, may combine with a preceding one:
// marks, Hangul vowels and final consonants, and compatibility forms of them.
bool MayCombineBackward(uint32_t code) {
  const utf8proc_category_t category =
      utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return (code >= 0x1100 && code <= 0x11ff) ||
         (code >= 0x3130 && code <= 0x318f) ||
         (code >= 0xff9e && code <= 0xffdc) ||
         (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME);
}

class Form final : public Normalizer {
 public:
  explicit Form(UnicodeForm form)
      : options_(Options(form)), first_unstable_(FirstUnstable(form)) {}

  bool Apply(absl::string_view text, RegexState*, std::string* out,
             Alignment* alignment) const override {
    std::string made;
    out->clear();
    size_t kept = 0;  // text[0, kept) is in *out
    size_t at = 0;
    bool changed = false;
    Stretch stretch;
    while (NextStretch(text, &at, &stretch)) {
      const absl::string_view old =
          text.substr(stretch.begin, stretch.end - stretch.begin);
      Normalize(old, &made);
      if (made == old) continue;
      changed = true;
      out->append(text.data() + kept, stretch.begin - kept);
      alignment->Keep(stretch.begin - kept);
      AppendClusters(old, out, alignment);
      kept = stretch.end;
    }
    if (!changed) return false;
    out->append(text.data() + kept, text.size() - kept);
    alignment->Keep(text.size() - kept);
    return true;
  }

 private:
  struct Stretch {
    size_t begin;
    size_t end;
  };

  // From *at on, the next run of unstable characters, including the preceding
  // stable one, which a mark may combine with.
  bool NextStretch(absl::string_view text, size_t* at, Stretch* stretch) const {
    size_t last = *at;  // start of the previous character
    while (*at < text.size()) {
      if (static_cast<unsigned char>(text[*at]) < 0x80) {
        last = (*at)++;
        continue;
      }
      size_t next = *at;
      const uint32_t code = NextCharacter(text, &next);
      if (IsNotNormalized(code)) {  // nor with what follows
        last = *at = next;
        continue;
      }
      if (code < first_unstable_) {
        last = *at;
        *at = next;
        continue;
      }
      stretch->begin = last;
      while (next < text.size()) {
        const size_t begin = next;
        const uint32_t following = NextCharacter(text, &next);
        if (following < first_unstable_ || IsNotNormalized(following)) {
          next = begin;
          break;
        }
      }
      stretch->end = *at = next;
      return true;
    }
    return false;
  }

  // Characters that may combine are normalized together.
  void AppendClusters(absl::string_view text, std::string* out,
                      Alignment* alignment) const {
    std::string made;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      NextCharacter(text, &at);
      while (at < text.size()) {
        size_t next = at;
        if (!MayCombineBackward(NextCharacter(text, &next))) break;
        at = next;
      }
      const absl::string_view old = text.substr(begin, at - begin);
      Normalize(old, &made);
      *out += made;
      if (made == old) {
        alignment->Keep(old.size());
      } else {
        alignment->Change(old.size(), made.size());
      }
    }
  }

  void Normalize(absl::string_view text, std::string* made) const {
    std::vector<utf8proc_int32_t> codes(text.size() + 1);
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto size = static_cast<utf8proc_ssize_t>(text.size());
    utf8proc_ssize_t n = utf8proc_decompose(
        bytes, size, codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
        options_);
    if (n > static_cast<utf8proc_ssize_t>(codes.size())) {
      codes.resize(n + 1);
      n = utf8proc_decompose(bytes, size, codes.data(), n + 1, options_);
    }
    n = utf8proc_normalize_utf32(codes.data(), n, options_);
    made->clear();
    for (utf8proc_ssize_t i = 0; i < n; ++i) AppendCharacter(codes[i], made);
  }

  const utf8proc_option_t options_;
  const uint32_t first_unstable_;
};

}  // namespace

std::unique_ptr<Normalizer> NewUnicodeForm(UnicodeForm form) {
  return std::make_unique<Form>(form);
}

}  // namespace capstan::tokenizer
