// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pattern_split.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/word_scanner.h"

namespace capstan {
namespace tokenizer {
namespace {

// The matches of a string, as RegexMatches gives those of an expression.
class LiteralMatches {
 public:
  LiteralMatches(const std::string& literal, absl::string_view text)
      : literal_(literal), text_(text) {}

  bool Next(size_t* begin, size_t* end) {
    const size_t found = text_.find(literal_, from_);
    if (found == absl::string_view::npos) return false;
    *begin = found;
    *end = from_ = found + literal_.size();
    return true;
  }

 private:
  const std::string& literal_;
  const absl::string_view text_;
  size_t from_ = 0;
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
  // Bytes [begin, end) that are to be given once it is clear what joins them.
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

  // The next part of the piece, a match or what lies between two.
  void Part(size_t begin, size_t end, bool is_match, const Piece& piece,
            Waiting* waiting, Worker* worker) const {
    bool joins = false;  // with the part that waits
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

// One of the expressions that have a WordScanner: every match is a piece, and
// nothing lies between them.
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

}  // namespace

absl::StatusOr<SplitBehavior> MakeSplitBehavior(const JsonNode& node) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string name, node.String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.Unsupported(absl::StrCat("\"", name, "\" isn't supported"));
}

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

}  // namespace tokenizer
}  // namespace capstan
