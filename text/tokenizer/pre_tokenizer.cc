// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pre_tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/word_scanner.h"

namespace capstan::tokenizer {
namespace {

// SmolLM2 and others look at each character.
bool IsNumeric(uint32_t code) {
  return code < 0x80 ? code >= '0' && code <= '9' : IsNumber(code);
}

// What Runs does with characters; kinds above are runs of their own.
enum RunKind : int {
  kJoins = -2,   // goes with what is before it
  kAlone = -1,   // a piece by itself
  kDropped = 0,  // so is what joins it, or has nothing before it
};

// Cuts where the kind of characters changes; kind_of(code) is a RunKind.
template <typename KindOf>
class Runs final : public PieceStep {
 public:
  explicit Runs(KindOf kind_of) : kind_of_(std::move(kind_of)) {}

  void Take(const Piece& piece, Worker* worker) const override {
    const absl::string_view text = piece.text;
    size_t begin = 0;  // of the run
    int kind = kDropped;
    for (size_t at = 0; at < text.size();) {
      const size_t here = at;
      const int next = kind_of_(NextCharacter(text, &at));
      if (next == kJoins || (next == kind && kind != kAlone)) continue;
      if (kind != kDropped) {
        Give({piece.frame, text.substr(begin, here - begin)}, worker);
      }
      begin = here;
      kind = next;
    }
    if (kind != kDropped) Give({piece.frame, text.substr(begin)}, worker);
  }

 private:
  const KindOf kind_of_;
};

template <typename KindOf>
std::unique_ptr<PieceStep> NewRuns(KindOf kind_of) {
  return std::make_unique<Runs<KindOf>>(std::move(kind_of));
}

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

// Changes each piece.
class Transform final : public PieceStep {
 public:
  explicit Transform(std::unique_ptr<Normalizer> normalizer)
      : normalizer_(std::move(normalizer)) {}

  void Take(const Piece& piece, Worker* worker) const override {
    std::string text;
    Alignment alignment;
    if (!normalizer_->Apply(piece.text, &worker->regex, &text, &alignment)) {
      Give(piece, worker);
      return;
    }
    const Frame frame = {text, piece.frame, piece.text, &alignment};
    Give({&frame, text}, worker);
  }

 private:
  const std::unique_ptr<Normalizer> normalizer_;
};

class FixedLength final : public PieceStep {
 public:
  explicit FixedLength(int64_t characters) : characters_(characters) {}

  void Take(const Piece& piece, Worker* worker) const override {
    const absl::string_view text = piece.text;
    size_t begin = 0;
    int64_t characters = 0;
    for (size_t at = 0; at < text.size();) {
      at += CharacterBytes(text[at]);
      if (++characters < characters_) continue;
      Give({piece.frame, text.substr(begin, at - begin)}, worker);
      begin = at;
      characters = 0;
    }
    Give({piece.frame, text.substr(begin)}, worker);
  }

 private:
  const int64_t characters_;
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
    Waiting waiting;
    size_t done = 0;
    ForEachMatch(pattern_, piece.text, &worker->regex,
                 [&](size_t begin, size_t end) {
                   if (begin > done) {
                     Part(done, begin, invert_, piece, &waiting, worker);
                   }
                   Part(begin, end, !invert_, piece, &waiting, worker);
                   done = end;
                 });
    if (done < piece.text.size()) {
      Part(done, piece.text.size(), invert_, piece, &waiting, worker);
    }
    if (waiting.any) GiveRange(waiting.begin, waiting.end, piece, worker);
  }

 private:
  // Bytes [begin, end) held back until it is known what joins them.
  struct Waiting {
    size_t begin = 0;
    size_t end = 0;
    bool is_match = false;
    bool any = false;
  };

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
    if (made_.byte_level) ToByteCharacters();
    if (type == "ByteLevel") return AddByteLevel(node);
    made_.reads_characters = true;
    if (type == "Digits") return AddDigits(node);
    if (type == "Split") return AddSplit(node);
    if (type == "Punctuation") return AddPunctuation(node);
    if (type == "Metaspace") return AddMetaspace(node);
    if (type == "CharDelimiterSplit") return AddDelimiter(node);
    if (type == "FixedLength") return AddFixedLength(node);
    return AddPlain(node, type);
  }

  PreTokenizers Take(bool takes_bytes) {
    if (made_.byte_level && !takes_bytes) ToByteCharacters();
    return std::move(made_);
  }

 private:
  void Push(std::unique_ptr<PieceStep> step) {
    made_.steps.push_back(std::move(step));
  }

  void PushSplit(Pattern pattern, SplitBehavior behavior, bool invert = false) {
    Push(NewPatternSplit(std::move(pattern), behavior, invert));
  }

  void PushCharacters(bool (*character)(uint32_t), SplitBehavior behavior) {
    PushSplit({"", nullptr, character}, behavior);
  }

  // What comes next reads the characters that stand for bytes.
  void ToByteCharacters() {
    Push(std::make_unique<Transform>(NewToByteCharacters()));
    made_.byte_level = false;
    made_.reads_characters = true;
  }

  // Those without fields.
  absl::Status AddPlain(const JsonNode& node, const std::string& type) {
    if (type == "Whitespace") {
      // \w+|[^\w\s]+: runs of word characters and of signs.
      Push(NewRuns([](uint32_t code) {
        return IsWord(code) ? 1 : IsSpace(code) ? int{kDropped} : 2;
      }));
    } else if (type == "WhitespaceSplit") {
      PushCharacters(IsSpace, SplitBehavior::kRemoved);
    } else if (type == "BertPreTokenizer") {
      PushCharacters(IsSpace, SplitBehavior::kRemoved);
      PushCharacters(IsPunctuation, SplitBehavior::kIsolated);
    } else if (type == "UnicodeScripts") {
      Push(NewRuns([](uint32_t code) {
        const int script = ScriptOf(code);
        return script == 0 ? int{kJoins} : script;
      }));
    } else {
      return node.Unsupported("a pre-tokenizer of type \"", type,
                              "\" isn't supported");
    }
    return node.CheckMembers({"type"});
  }

  absl::Status AddDelimiter(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "delimiter"}));
    Pattern pattern;
    CAPSTAN_ASSIGN_OR_RETURN(pattern.literal, node.String("delimiter"));
    if (pattern.literal.empty() ||
        CharacterBytes(pattern.literal[0]) != pattern.literal.size()) {
      return node.Member("delimiter").Invalid("must be one character");
    }
    PushSplit(std::move(pattern), SplitBehavior::kRemoved);
    return absl::OkStatus();
  }

  absl::Status AddFixedLength(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "length"}));
    int64_t length = 5;
    if (!node.Member("length").IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(length, node.Int("length"));
    }
    if (length < 1) return node.Member("length").Invalid("must be at least 1");
    Push(std::make_unique<FixedLength>(length));
    return absl::OkStatus();
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
    Pattern pattern;
    CAPSTAN_ASSIGN_OR_RETURN(pattern.regex, Regex::Compile(kGpt2Words));
    PushSplit(std::move(pattern), SplitBehavior::kIsolated);
    return absl::OkStatus();
  }

  absl::Status AddDigits(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "individual_digits"}));
    CAPSTAN_ASSIGN_OR_RETURN(const bool individual,
                             node.Bool("individual_digits", false));
    const int number = individual ? int{kAlone} : 1;
    Push(NewRuns(
        [number](uint32_t code) { return IsNumeric(code) ? number : 2; }));
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
    PushSplit(std::move(pattern), behavior, invert);
    return absl::OkStatus();
  }

  absl::Status AddPunctuation(const JsonNode& node) {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "behavior"}));
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (!node.Member("behavior").IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(behavior,
                               MakeSplitBehavior(node.Member("behavior")));
    }
    PushCharacters(IsPunctuation, behavior);
    return absl::OkStatus();
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
    Push(std::make_unique<Transform>(NewReplace(" ", mark)));
    if (scheme == "always" || scheme == "first") {
      Push(std::make_unique<AddPrefix>(mark, scheme == "first"));
    } else if (scheme != "never") {
      return named.Unsupported("\"", scheme, "\" isn't supported");
    }
    if (split) {
      PushSplit({mark, nullptr, nullptr}, SplitBehavior::kMergedWithNext);
    }
    return absl::OkStatus();
  }

  PreTokenizers made_;
};

}  // namespace

absl::StatusOr<PreTokenizers> MakePreTokenizers(const JsonNode& node,
                                                bool takes_bytes) {
  Maker maker;
  if (node.IsNull()) return maker.Take(takes_bytes);
  CAPSTAN_RETURN_IF_ERROR(
      ForEachStep(node, "pretokenizers",
                  [&](const JsonNode& step, const std::string& type) {
                    return maker.Add(step, type);
                  }));
  return maker.Take(takes_bytes);
}

}  // namespace capstan::tokenizer
