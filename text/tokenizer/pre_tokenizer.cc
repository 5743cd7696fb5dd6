// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pre_tokenizer.h"

#include <utf8proc.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/word_scanner.h"

namespace capstan::tokenizer {
namespace {

// The union of char::is_ascii_punctuation and Unicode's P.
constexpr char kPunctuation[] = R"([\p{P}$+<=>^`|~])";

bool IsNumeric(uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  const utf8proc_category_t category =
      utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

// Splits off numbers (Unicode's N), individually or in runs.
class Digits final : public PieceStep {
 public:
  explicit Digits(bool individual) : individual_(individual) {}

  void Take(const Piece& piece, Worker* worker) const override {
    const absl::string_view text = piece.text;
    size_t begin = 0;  // of what hasn't been passed on
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

// Prefixes pieces that don't begin with `prefix`; if `first`, only at the start
// of the text.
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
    worker->regex.budget.Charge(prefix_.size() + piece.text.size());
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

// Metaspace: replaces each space with `to`.
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

// What happens to the delimiters of a split ("a", "-", "-", "b").
enum class SplitBehavior {
  kRemoved,             // a b
  kIsolated,            // a - - b
  kMergedWithPrevious,  // a- - b
  kMergedWithNext,      // a - -b
  kContiguous,          // a -- b
};

class PatternSplit final : public PieceStep {
 public:
  PatternSplit(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Take(const Piece& piece, Worker* worker) const override {
    if (pattern_.regex != nullptr) {
      TakeMatches(RegexMatches(*pattern_.regex, piece.text, &worker->regex),
                  piece, worker);
    } else {
      TakeMatches(LiteralMatches(pattern_.literal, piece.text), piece, worker);
    }
  }

 private:
  // Bytes [begin, end) held back until it is known what joins them.
  struct Waiting {
    size_t begin = 0;
    size_t end = 0;
    bool is_match = false;
    bool any = false;
  };

  template <typename Matches>
  void TakeMatches(Matches matches, const Piece& piece, Worker* worker) const {
    Waiting waiting;
    size_t done = 0;
    size_t begin = 0;
    size_t end = 0;
    while (matches.Next(&begin, &end)) {
      if (begin > done) Part(done, begin, invert_, piece, &waiting, worker);
      Part(begin, end, !invert_, piece, &waiting, worker);
      done = end;
    }
    if (done < piece.text.size()) {
      Part(done, piece.text.size(), invert_, piece, &waiting, worker);
    }
    if (waiting.any) GiveRange(waiting.begin, waiting.end, piece, worker);
  }

  // Handles the next part of the piece, a match or the text between two.
  void Part(size_t begin, size_t end, bool is_match, const Piece& piece,
            Waiting* waiting, Worker* worker) const {
    bool joins = false;  // with the held-back part
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) GiveRange(begin, end, piece, worker);
        return;
      case SplitBehavior::kIsolated:
        GiveRange(begin, end, piece, worker);
        return;
      case SplitBehavior::kMergedWithPrevious:
        joins = is_match && !waiting->is_match;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = !is_match && waiting->is_match;
        break;
      case SplitBehavior::kContiguous:
        joins = is_match == waiting->is_match;
        break;
    }
    if (waiting->any && joins) {
      waiting->end = end;
      waiting->is_match = is_match;
      return;
    }
    if (waiting->any) GiveRange(waiting->begin, waiting->end, piece, worker);
    *waiting = {begin, end, is_match, true};
  }

  void GiveRange(size_t begin, size_t end, const Piece& piece,
                 Worker* worker) const {
    Give({piece.frame, piece.text.substr(begin, end - begin)}, worker);
  }

  const Pattern pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

// An expression with a WordScanner: every match is a piece, with nothing in
// between.
class WordSplit final : public PieceStep {
 public:
  WordSplit(std::unique_ptr<Regex> regex, WordScanner scanner)
      : regex_(std::move(regex)), scanner_(scanner) {}

  void Take(const Piece& piece, Worker* worker) const override {
    const char* const begin = piece.text.data();
    const char* const end = begin + piece.text.size();
    for (const char* at = begin; at < end;) {
      size_t bytes = scanner_(at, end);
      if (bytes == 0) {
        size_t match_begin = 0;
        size_t match_end = piece.text.size();
        regex_->Find(piece.text, at - begin, &worker->regex, &match_begin,
                     &match_end);
        bytes = match_end - (at - begin);
      }
      Give({piece.frame, absl::string_view(at, bytes)}, worker);
      at += bytes;
    }
  }

 private:
  const std::unique_ptr<Regex> regex_;
  const WordScanner scanner_;
};

absl::StatusOr<SplitBehavior> MakeSplitBehavior(const JsonNode& node) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string name, node.String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.Unsupported("\"", name, "\" isn't supported");
}

// Splits at the matches of `pattern`, or, if `invert`, at the text between
// them.
std::unique_ptr<PieceStep> NewPatternSplit(Pattern pattern,
                                           SplitBehavior behavior,
                                           bool invert) {
  if (pattern.regex != nullptr) {
    const WordScanner scanner = FindWordScanner(pattern.regex->pattern());
    if (scanner != nullptr &&
        ((behavior == SplitBehavior::kIsolated) ||
         (behavior == SplitBehavior::kRemoved && invert))) {
      return std::make_unique<WordSplit>(std::move(pattern.regex), scanner);
    }
  }
  return std::make_unique<PatternSplit>(std::move(pattern), behavior, invert);
}

class Maker {
 public:
  absl::Status Add(const JsonNode& node, const std::string& type) {
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
    return node.Unsupported("a pre-tokenizer of type \"", type,
                            "\" isn't supported");
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
                             node.Bool("add_prefix_space", true));
    CAPSTAN_ASSIGN_OR_RETURN(const bool use_regex,
                             node.Bool("use_regex", true));
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
                             node.Bool("individual_digits", false));
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
    CAPSTAN_ASSIGN_OR_RETURN(const bool invert, node.Bool("invert", false));
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
                             node.String("replacement"));
    CAPSTAN_ASSIGN_OR_RETURN(const bool add_space,
                             node.Bool("add_prefix_space", true));
    CAPSTAN_ASSIGN_OR_RETURN(const bool split, node.Bool("split", true));
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
      return named.Unsupported("\"", scheme, "\" isn't supported");
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
  if (node.IsNull()) return maker.Take();
  CAPSTAN_RETURN_IF_ERROR(
      ForEachStep(node, "pretokenizers",
                  [&](const JsonNode& step, const std::string& type) {
                    return maker.Add(step, type);
                  }));
  return maker.Take();
}

}  // namespace capstan::tokenizer
