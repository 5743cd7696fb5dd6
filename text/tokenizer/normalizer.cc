// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// The time to find one is at worst this times the text's length.
constexpr size_t kMaxLiteralBytes = 1024;
constexpr char kReplacement[] = "\xef\xbf\xbd";  // U+FFFD

// Length of the longest proper prefix of a valid character at the start of
// `text`; at least 1. `text` must not begin with a valid character.
size_t MaximalPart(absl::string_view text) {
  const auto byte = [&text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const int first = byte(0);
  const int second = byte(1);
  int low = 0x80;
  int high = 0xbf;
  size_t length = 0;
  if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  }
  if (length == 0 || second < low || second > high) return 1;
  size_t part = 2;
  while (part < length - 1 && byte(part) >= 0x80 && byte(part) <= 0xbf) ++part;
  return part;
}

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

class Replace final : public Normalizer {
 public:
  Replace(Pattern from, std::string to)
      : from_(std::move(from)), to_(std::move(to)) {}

  bool Apply(absl::string_view text, RegexState* state, std::string* out,
             Alignment* alignment) const override {
    size_t done = 0;
    bool changed = false;
    const auto append = [&](size_t end) {
      out->append(text.data() + done, end - done);
      alignment->Keep(end - done);
    };
    ForEachMatch(from_, text, state, [&](size_t begin, size_t end) {
      if (!changed) {
        state->budget.Charge(text.size());
        out->clear();
        changed = true;
      }
      state->budget.Charge(to_.size());
      append(begin);
      *out += to_;
      alignment->Change(end - begin, to_.size());
      done = end;
    });
    if (changed) append(text.size());
    return changed;
  }

 private:
  const Pattern from_;
  const std::string to_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}

  bool Apply(absl::string_view text, RegexState* state, std::string* out,
             Alignment* alignment) const override {
    if (text.empty() || prefix_.empty()) return false;
    state->budget.Charge(prefix_.size() + text.size());
    *out = absl::StrCat(prefix_, text);
    NotePrefix(text, prefix_.size(), alignment);
    return true;
  }

 private:
  const std::string prefix_;
};

absl::StatusOr<std::unique_ptr<Normalizer>> MakeNormalizer(
    const JsonNode& node, const std::string& type) {
  if (type == "Replace") return MakeReplace(node);
  if (type == "Precompiled") return MakePrecompiled(node);
  if (type == "Prepend") {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "prepend"}));
    CAPSTAN_ASSIGN_OR_RETURN(std::string prefix, node.String("prepend"));
    return std::make_unique<Prepend>(std::move(prefix));
  }
  for (const auto& [name, form] : {std::pair("NFC", UnicodeForm::kNfc),
                                   std::pair("NFD", UnicodeForm::kNfd),
                                   std::pair("NFKC", UnicodeForm::kNfkc),
                                   std::pair("NFKD", UnicodeForm::kNfkd)}) {
    if (type != name) continue;
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type"}));
    return NewUnicodeForm(form);
  }
  return node.Unsupported("a normalizer of type \"", type,
                          "\" isn't supported");
}

}  // namespace

void Alignment::Keep(size_t bytes) {
  if (bytes == 0) return;
  if (runs_.empty() || !runs_.back().kept) {
    runs_.push_back({old_size_, new_size_, true});
  }
  old_size_ += bytes;
  new_size_ += bytes;
}

void Alignment::Change(size_t from, size_t to) {
  runs_.push_back({old_size_, new_size_, false});
  old_size_ += from;
  new_size_ += to;
}

size_t Alignment::Find(size_t place) const {
  const auto behind = std::upper_bound(
      runs_.begin(), runs_.end(), place,
      [](size_t p, const Run& run) { return p < run.new_begin; });
  // The first run begins at 0.
  return static_cast<size_t>(behind - runs_.begin()) - 1;
}

size_t Alignment::OldEnd(size_t run) const {
  return run + 1 < runs_.size() ? runs_[run + 1].old_begin : old_size_;
}

size_t Alignment::Begin(size_t place) const {
  if (runs_.empty() || place >= new_size_) return old_size_;
  const Run& run = runs_[Find(place)];
  return run.old_begin + (run.kept ? place - run.new_begin : 0);
}

size_t Alignment::End(size_t place) const {
  if (runs_.empty() || place == 0) return 0;
  const size_t index = Find(std::min(place, new_size_) - 1);
  const Run& run = runs_[index];
  return run.kept ? run.old_begin + (place - run.new_begin) : OldEnd(index);
}

void ToCaller(const Frame* frame, size_t* begin, size_t* end) {
  for (; frame->parent != nullptr; frame = frame->parent) {
    const size_t offset = frame->in_parent.data() - frame->parent->text.data();
    const size_t old_begin = frame->alignment->Begin(*begin);
    *end = offset + std::max(frame->alignment->End(*end), old_begin);
    *begin = offset + old_begin;
  }
}

std::string ToUtf8(absl::string_view text, Alignment* alignment) {
  std::string valid;
  size_t at = 0;
  while (at < text.size()) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
        static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (bytes > 0) {
      valid.append(text.data() + at, bytes);
      alignment->Keep(bytes);
      at += bytes;
      continue;
    }
    const size_t part = MaximalPart(text.substr(at));
    valid += kReplacement;
    alignment->Change(part, sizeof(kReplacement) - 1);
    at += part;
  }
  return valid;
}

void NotePrefix(absl::string_view text, size_t prefix_bytes,
                Alignment* alignment) {
  const size_t first = std::min(CharacterBytes(text[0]), text.size());
  alignment->Change(first, prefix_bytes + first);
  alignment->Keep(text.size() - first);
}

std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to) {
  return std::make_unique<Replace>(Pattern{std::move(from), nullptr, nullptr},
                                   std::move(to));
}

absl::StatusOr<std::unique_ptr<Normalizer>> MakeReplace(const JsonNode& node) {
  CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "pattern", "content"}));
  CAPSTAN_ASSIGN_OR_RETURN(Pattern pattern,
                           MakePattern(node.Member("pattern")));
  CAPSTAN_ASSIGN_OR_RETURN(std::string content, node.String("content"));
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
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
    if (pattern.literal.size() > kMaxLiteralBytes) {
      return literal.Invalid("has ", pattern.literal.size(),
                             " bytes, more than the limit of ",
                             kMaxLiteralBytes);
    }
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
  const auto add = [&](const JsonNode& step,
                       const std::string& type) -> absl::Status {
    if (normalizers.size() >= kMaxSteps) {
      return step.Unsupported("there are too many normalizers");
    }
    CAPSTAN_ASSIGN_OR_RETURN(const bool added,
                             AddCharacterNormalizers(step, type, &normalizers));
    if (added) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Normalizer>> made =
        MakeNormalizer(step, type);
    if (made.ok()) normalizers.push_back(*std::move(made));
    return made.status();
  };
  CAPSTAN_RETURN_IF_ERROR(ForEachStep(node, "normalizers", add));
  return normalizers;
}

}  // namespace capstan::tokenizer
