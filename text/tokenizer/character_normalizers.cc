// SPDX-License-Identifier: Apache-2.0
//
// Normalizers that replace each character by itself.
#include <utility>

#include "base/status.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// `map(code, out)` appends what becomes of a character.
template <typename Map>
class EachCharacter final : public Normalizer {
 public:
  explicit EachCharacter(Map map) : map_(std::move(map)) {}

  bool Apply(absl::string_view text, RegexState* state, std::string* out,
             Alignment* alignment) const override {
    out->clear();
    bool changed = false;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const uint32_t code = NextCharacter(text, &at);
      const size_t made = out->size();
      map_(code, out);
      const absl::string_view old = text.substr(begin, at - begin);
      if (absl::string_view(*out).substr(made) == old) {
        alignment->Keep(old.size());
      } else {
        alignment->Change(old.size(), out->size() - made);
        changed = true;
      }
    }
    if (changed) state->budget.Charge(out->size());
    return changed;
  }

 private:
  const Map map_;
};

template <typename Map>
std::unique_ptr<Normalizer> New(Map map) {
  return std::make_unique<EachCharacter<Map>>(std::move(map));
}

// Drops characters for which drop(code).
template <typename Drop>
std::unique_ptr<Normalizer> NewFilter(Drop drop) {
  return New([drop](uint32_t code, std::string* out) {
    if (!drop(code)) AppendCharacter(code, out);
  });
}

// The blocks of Chinese characters as BERT's tokenization.py lists them.
bool IsChinese(uint32_t code) {
  return (code >= 0x4e00 && code <= 0x9fff) ||
         (code >= 0x3400 && code <= 0x4dbf) ||
         (code >= 0x20000 && code <= 0x2a6df) ||
         (code >= 0x2a700 && code <= 0x2b73f) ||
         (code >= 0x2b740 && code <= 0x2b81f) ||
         (code >= 0x2b920 && code <= 0x2ceaf) ||
         (code >= 0xf900 && code <= 0xfaff) ||
         (code >= 0x2f800 && code <= 0x2fa1f);
}

// What SentencePiece's "nmt" rules drop, and what they replace with a space.
bool NmtDrops(uint32_t code) {
  return (code >= 0x01 && code <= 0x08) || code == 0x0b ||
         (code >= 0x0e && code <= 0x1f) || code == 0x7f || code == 0x8f ||
         code == 0x9f;
}

bool NmtReplaces(uint32_t code) {
  switch (code) {
    case 0x09:
    case 0x0a:
    case 0x0c:
    case 0x0d:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x2581:
    case 0xfeff:
    case 0xfffd:
      return true;
    default:
      return code >= 0x200b && code <= 0x200f;
  }
}

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  bool Apply(absl::string_view text, RegexState* state, std::string* out,
             Alignment* alignment) const override {
    const absl::string_view rest =
        StripCharacters(text, IsSpace, left_, right_);
    if (rest.size() == text.size()) return false;
    state->budget.Charge(rest.size());
    *out = std::string(rest);
    const size_t begin = rest.data() - text.data();
    alignment->Change(begin, 0);
    alignment->Keep(rest.size());
    alignment->Change(text.size() - begin - rest.size(), 0);
    return true;
  }

 private:
  const bool left_;
  const bool right_;
};

// By Unicode's full mapping, without regard to neighbours.
std::unique_ptr<Normalizer> NewLowercase() { return New(AppendLowercase); }

absl::Status AddBert(const JsonNode& node,
                     std::vector<std::unique_ptr<Normalizer>>* made) {
  CAPSTAN_RETURN_IF_ERROR(
      node.CheckMembers({"type", "clean_text", "handle_chinese_chars",
                         "strip_accents", "lowercase"}));
  CAPSTAN_ASSIGN_OR_RETURN(const bool clean, node.Bool("clean_text", true));
  CAPSTAN_ASSIGN_OR_RETURN(const bool chinese,
                           node.Bool("handle_chinese_chars", true));
  CAPSTAN_ASSIGN_OR_RETURN(const bool lowercase, node.Bool("lowercase", true));
  CAPSTAN_ASSIGN_OR_RETURN(const bool strip_accents,
                           node.Bool("strip_accents", lowercase));
  if (clean) {
    made->push_back(New([](uint32_t code, std::string* out) {
      if (IsBertControl(code)) return;
      AppendCharacter(IsSpace(code) ? ' ' : code, out);
    }));
  }
  if (chinese) {
    made->push_back(New([](uint32_t code, std::string* out) {
      const char* const space = IsChinese(code) ? " " : "";
      *out += space;
      AppendCharacter(code, out);
      *out += space;
    }));
  }
  if (strip_accents) {
    made->push_back(NewUnicodeForm(UnicodeForm::kNfd));
    made->push_back(NewFilter(IsNonspacingMark));
  }
  if (lowercase) made->push_back(NewLowercase());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Normalizer>> MakeStrip(const JsonNode& node) {
  CAPSTAN_RETURN_IF_ERROR(
      node.CheckMembers({"type", "strip_left", "strip_right"}));
  CAPSTAN_ASSIGN_OR_RETURN(const bool left, node.Bool("strip_left", true));
  CAPSTAN_ASSIGN_OR_RETURN(const bool right, node.Bool("strip_right", true));
  return std::make_unique<Strip>(left, right);
}

}  // namespace

std::unique_ptr<Normalizer> NewToByteCharacters() {
  return New([](uint32_t code, std::string* out) {
    std::string bytes;
    AppendCharacter(code, &bytes);
    for (char c : bytes) {
      AppendCharacter(ByteToCharacter(static_cast<unsigned char>(c)), out);
    }
  });
}

absl::StatusOr<bool> AddCharacterNormalizers(
    const JsonNode& node, const std::string& type,
    std::vector<std::unique_ptr<Normalizer>>* made) {
  if (type == "BertNormalizer") {
    CAPSTAN_RETURN_IF_ERROR(AddBert(node, made));
    return true;
  }
  if (type == "Strip") {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> strip,
                             MakeStrip(node));
    made->push_back(std::move(strip));
    return true;
  }
  if (type == "Lowercase") {
    made->push_back(NewLowercase());
  } else if (type == "StripAccents") {  // without decomposing them first
    made->push_back(NewFilter(IsCombiningMark));
  } else if (type == "ByteLevel") {
    made->push_back(NewToByteCharacters());
  } else if (type == "Nmt") {
    made->push_back(New([](uint32_t code, std::string* out) {
      if (NmtDrops(code)) return;
      AppendCharacter(NmtReplaces(code) ? ' ' : code, out);
    }));
  } else {
    return false;
  }
  CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type"}));
  return true;
}

}  // namespace capstan::tokenizer
