// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

class ReplaceLiteral final : public Normalizer {
 public:
  ReplaceLiteral(std::string from, std::string to)
      : from_(std::move(from)), to_(std::move(to)) {}

  bool Apply(absl::string_view text, RegexState*, std::string* out,
             Alignment* alignment) const override {
    size_t found = text.find(from_);
    if (found == absl::string_view::npos) return false;
    out->clear();
    size_t done = 0;
    for (; found != absl::string_view::npos; found = text.find(from_, done)) {
      out->append(text.data() + done, found - done);
      alignment->Keep(found - done);
      *out += to_;
      alignment->Change(from_.size(), to_.size());
      done = found + from_.size();
    }
    out->append(text.data() + done, text.size() - done);
    alignment->Keep(text.size() - done);
    return true;
  }

 private:
  const std::string from_;
  const std::string to_;
};

class ReplaceMatches final : public Normalizer {
 public:
  ReplaceMatches(std::unique_ptr<Regex> from, std::string to)
      : from_(std::move(from)), to_(std::move(to)) {}

  bool Apply(absl::string_view text, RegexState* state, std::string* out,
             Alignment* alignment) const override {
    RegexMatches matches(*from_, text, state);
    out->clear();
    size_t done = 0;
    size_t begin = 0;
    size_t end = 0;
    bool changed = false;
    while (matches.Next(&begin, &end)) {
      changed = true;
      out->append(text.data() + done, begin - done);
      alignment->Keep(begin - done);
      *out += to_;
      alignment->Change(end - begin, to_.size());
      done = end;
    }
    if (!changed) return false;
    out->append(text.data() + done, text.size() - done);
    alignment->Keep(text.size() - done);
    return true;
  }

 private:
  const std::unique_ptr<Regex> from_;
  const std::string to_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}

  bool Apply(absl::string_view text, RegexState*, std::string* out,
             Alignment* alignment) const override {
    if (text.empty() || prefix_.empty()) return false;
    *out = absl::StrCat(prefix_, text);
    NotePrefix(text, prefix_.size(), alignment);
    return true;
  }

 private:
  const std::string prefix_;
};

// By Unicode's full mapping, character by character; only U+0130 yields two.
class Lowercase final : public Normalizer {
 public:
  bool Apply(absl::string_view text, RegexState*, std::string* out,
             Alignment* alignment) const override {
    out->clear();
    bool changed = false;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const uint32_t code = NextCharacter(text, &at);
      const size_t made = out->size();
      if (code == 0x130) {
        *out += "i\xcc\x87";
      } else {
        AppendCharacter(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)),
                        out);
      }
      const absl::string_view old = text.substr(begin, at - begin);
      if (absl::string_view(*out).substr(made) == old) {
        alignment->Keep(old.size());
      } else {
        alignment->Change(old.size(), out->size() - made);
        changed = true;
      }
    }
    return changed;
  }
};

absl::StatusOr<std::unique_ptr<Normalizer>> MakeReplace(const JsonNode& node) {
  CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "pattern", "content"}));
  CAPSTAN_ASSIGN_OR_RETURN(Pattern pattern,
                           MakePattern(node.Member("pattern")));
  CAPSTAN_ASSIGN_OR_RETURN(std::string content,
                           node.Member("content").String());
  if (pattern.regex == nullptr) {
    return NewReplace(std::move(pattern.literal), std::move(content));
  }
  return std::make_unique<ReplaceMatches>(std::move(pattern.regex),
                                          std::move(content));
}

absl::StatusOr<std::unique_ptr<Normalizer>> MakeNormalizer(
    const JsonNode& node, const std::string& type) {
  if (type == "Replace") return MakeReplace(node);
  if (type == "Prepend") {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "prepend"}));
    CAPSTAN_ASSIGN_OR_RETURN(std::string prefix,
                             node.Member("prepend").String());
    return std::make_unique<Prepend>(std::move(prefix));
  }
  CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type"}));
  if (type == "NFC") return NewUnicodeForm(UnicodeForm::kNfc);
  if (type == "NFD") return NewUnicodeForm(UnicodeForm::kNfd);
  if (type == "NFKC") return NewUnicodeForm(UnicodeForm::kNfkc);
  if (type == "NFKD") return NewUnicodeForm(UnicodeForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  return node.Unsupported(
      absl::StrCat("a normalizer of type \"", type, "\" isn't supported"));
}

absl::Status AddNormalizers(const JsonNode& node, int depth,
                            Normalizers* normalizers) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string type,
                           node.Member("type").String());
  if (normalizers->size() >= kMaxSteps) {
    return node.Unsupported("there are too many normalizers");
  }
  if (type != "Sequence") {
    CAPSTAN_ASSIGN_OR_RETURN(auto normalizer, MakeNormalizer(node, type));
    normalizers->push_back(std::move(normalizer));
    return absl::OkStatus();
  }
  return ForEachInSequence(
      node, "normalizers", depth, [&](const JsonNode& item) {
        return AddNormalizers(item, depth + 1, normalizers);
      });
}

}  // namespace

std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to) {
  return std::make_unique<ReplaceLiteral>(std::move(from), std::move(to));
}

absl::StatusOr<Pattern> MakePattern(const JsonNode& node) {
  Pattern pattern;
  const JsonNode literal = node.Member("String");
  const JsonNode regex = node.Member("Regex");
  if (literal.IsNull() == regex.IsNull()) {
    return node.Invalid("must be {\"String\": ..} or {\"Regex\": ..}");
  }
  if (!literal.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(pattern.literal, literal.String());
    if (pattern.literal.empty()) return literal.Invalid("is empty");
    return pattern;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, regex.String());
  absl::StatusOr<std::unique_ptr<Regex>> compiled = Regex::Compile(text);
  if (!compiled.ok()) return Annotate(compiled.status(), regex.place());
  pattern.regex = *std::move(compiled);
  return pattern;
}

absl::StatusOr<Normalizers> MakeNormalizers(const JsonNode& node) {
  Normalizers normalizers;
  if (node.IsNull()) return normalizers;
  CAPSTAN_RETURN_IF_ERROR(AddNormalizers(node, 0, &normalizers));
  return normalizers;
}

}  // namespace capstan::tokenizer
