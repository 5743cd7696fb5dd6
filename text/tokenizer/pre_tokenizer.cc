// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pre_tokenizer.h"

#include <utf8proc.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/pattern_split.h"
#include "text/tokenizer/utf8.h"
#include "text/tokenizer/word_scanner.h"

namespace capstan {
namespace tokenizer {
namespace {

// What char::is_ascii_punctuation and Unicode's P together are.
constexpr char kPunctuation[] = R"([\p{P}$+<=>^`|~])";

bool IsNumeric(uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  const utf8proc_category_t category =
      utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

// Numbers (Unicode's N) apart from the rest, each alone or runs of them.
class Digits final : public PieceStep {
 public:
  explicit Digits(bool individual) : individual_(individual) {}

  void Take(const Piece& piece, Worker* worker) const override {
    const absl::string_view text = piece.text;
    size_t begin = 0;  // of what has not been given yet
    bool numbers = false;
    for (size_t at = 0; at < text.size();) {
      const size_t here = at;
      const bool number = IsNumeric(NextCharacter(text, &at));
      if (number != numbers || (number && individual_)) {
        Give({piece.frame, text.substr(begin, here - begin)}, worker);
        begin = here;
        numbers = number;
      }
    }
    Give({piece.frame, text.substr(begin)}, worker);
  }

 private:
  const bool individual_;
};

// Puts `prefix` before pieces that don't begin with it; only at the beginning
// of the text, if `first`.
class AddPrefix final : public PieceStep {
 public:
  AddPrefix(std::string prefix, bool first)
      : prefix_(std::move(prefix)), first_(first) {}

  void Take(const Piece& piece, Worker* worker) const override {
    size_t begin = piece.text.data() - piece.frame->text.data();
    size_t end = begin + piece.text.size();
    ToCaller(piece.frame, &begin, &end);
    if (absl::StartsWith(piece.text, prefix_) || (first_ && begin != 0)) {
      Give(piece, worker);
      return;
    }
    const std::string text = absl::StrCat(prefix_, piece.text);
    Alignment alignment;
    NotePrefix(piece.text, prefix_.size(), &alignment);
    const Frame frame = {text, piece.frame, piece.text, &alignment};
    Give({&frame, text}, worker);
  }

 private:
  const std::string prefix_;
  const bool first_;
};

// Metaspace's: each space becomes `to`.
class ReplaceSpaces final : public PieceStep {
 public:
  explicit ReplaceSpaces(const std::string& to)
      : replace_(NewReplace(" ", to)) {}

  void Take(const Piece& piece, Worker* worker) const override {
    std::string text;
    Alignment alignment;
    if (!replace_->Apply(piece.text, &worker->regex, &text, &alignment)) {
      Give(piece, worker);
      return;
    }
    const Frame frame = {text, piece.frame, piece.text, &alignment};
    Give({&frame, text}, worker);
  }

 private:
  const std::unique_ptr<Normalizer> replace_;
};

class Maker {
 public:
  absl::Status Add(const JsonNode& node, int depth) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string type,
                             node.Member("type").String());
    if (type == "Sequence") {
      return ForEachInSequence(
          node, "pretokenizers", depth,
          [&](const JsonNode& item) { return Add(item, depth + 1); });
    }
    if (made_.steps.size() >= kMaxSteps) {
      return node.Unsupported("there are too many pre-tokenizers");
    }
    if (made_.byte_level) {
      return node.Unsupported(
          "a pre-tokenizer behind ByteLevel isn't supported");
    }
    if (type == "ByteLevel") return AddByteLevel(node);
    made_.reads_characters = true;
    if (type == "Digits") return AddDigits(node);
    if (type == "Split") return AddSplit(node);
    if (type == "Punctuation") return AddPunctuation(node);
    if (type == "Metaspace") return AddMetaspace(node);
    return node.Unsupported(
        absl::StrCat("a pre-tokenizer of type \"", type, "\" isn't supported"));
  }

  PreTokenizers Take() { return std::move(made_); }

 private:
  void Push(std::unique_ptr<PieceStep> step) {
    made_.steps.push_back(std::move(step));
  }

  absl::Status AddByteLevel(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers(
        {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    CAPSTAN_ASSIGN_OR_RETURN(const bool add_space,
                             node.Member("add_prefix_space").Bool(true));
    CAPSTAN_ASSIGN_OR_RETURN(const bool use_regex,
                             node.Member("use_regex").Bool(true));
    made_.byte_level = true;
    if (add_space) Push(std::make_unique<AddPrefix>(" ", /*first=*/false));
    if (!use_regex) return absl::OkStatus();
    made_.reads_characters = true;
    return PushSplit(kGpt2Words, SplitBehavior::kIsolated);
  }

  absl::Status PushSplit(absl::string_view regex, SplitBehavior behavior) {
    Pattern pattern;
    CAPSTAN_ASSIGN_OR_RETURN(pattern.regex, Regex::Compile(regex));
    Push(NewPatternSplit(std::move(pattern), behavior, /*invert=*/false));
    return absl::OkStatus();
  }

  absl::Status AddDigits(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "individual_digits"}));
    CAPSTAN_ASSIGN_OR_RETURN(const bool individual,
                             node.Member("individual_digits").Bool(false));
    Push(std::make_unique<Digits>(individual));
    return absl::OkStatus();
  }

  absl::Status AddSplit(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(
        node.CheckMembers({"type", "pattern", "behavior", "invert"}));
    CAPSTAN_ASSIGN_OR_RETURN(Pattern pattern,
                             MakePattern(node.Member("pattern")));
    CAPSTAN_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                             MakeSplitBehavior(node.Member("behavior")));
    CAPSTAN_ASSIGN_OR_RETURN(const bool invert,
                             node.Member("invert").Bool(false));
    Push(NewPatternSplit(std::move(pattern), behavior, invert));
    return absl::OkStatus();
  }

  absl::Status AddPunctuation(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "behavior"}));
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (!node.Member("behavior").IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(behavior,
                               MakeSplitBehavior(node.Member("behavior")));
    }
    return PushSplit(kPunctuation, behavior);
  }

  absl::Status AddMetaspace(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(
        node.CheckMembers({"type", "replacement", "str_rep", "prepend_scheme",
                           "add_prefix_space", "split"}));
    CAPSTAN_ASSIGN_OR_RETURN(const std::string mark,
                             node.Member("replacement").String());
    CAPSTAN_ASSIGN_OR_RETURN(const bool add_space,
                             node.Member("add_prefix_space").Bool(true));
    CAPSTAN_ASSIGN_OR_RETURN(const bool split, node.Member("split").Bool(true));
    std::string scheme = add_space ? "always" : "never";
    const JsonNode named = node.Member("prepend_scheme");
    if (!named.IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(scheme, named.String());
    }
    if (mark.empty()) return node.Member("replacement").Invalid("is empty");
    Push(std::make_unique<ReplaceSpaces>(mark));
    if (scheme == "always" || scheme == "first") {
      Push(std::make_unique<AddPrefix>(mark, scheme == "first"));
    } else if (scheme != "never") {
      return named.Unsupported(
          absl::StrCat("\"", scheme, "\" isn't supported"));
    }
    if (split) {
      Pattern pattern;
      pattern.literal = mark;
      Push(NewPatternSplit(std::move(pattern), SplitBehavior::kMergedWithNext,
                           /*invert=*/false));
    }
    return absl::OkStatus();
  }

  PreTokenizers made_;
};

}  // namespace

absl::StatusOr<PreTokenizers> MakePreTokenizers(const JsonNode& node) {
  Maker maker;
  if (!node.IsNull()) CAPSTAN_RETURN_IF_ERROR(maker.Add(node, 0));
  return maker.Take();
}

}  // namespace tokenizer
}  // namespace capstan
