// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// What an unknown character costs beyond the least probable token
// (SentencePiece's kUnkPenalty).
constexpr double kUnknownPenalty = 10.0;

class Unigram final : public Model {
 public:
  explicit Unigram(const Vocabulary* vocabulary) : vocabulary_(*vocabulary) {}

  absl::Status Load(const JsonNode& model);
  void Encode(absl::string_view word, Budget* budget,
              std::vector<Symbol>* symbols) const override;
  bool refuses_unknown() const override { return unknown_ == kNone; }

 private:
  // The best way to the end of a piece.
  struct Node {
    int32_t id = kNone;
    size_t begin = 0;  // of its last piece
    double score = 0;
  };
  static constexpr int32_t kNone = -1;

  void FindBest(absl::string_view word, Budget* budget,
                std::vector<Node>* best) const;
  // Appends the tokens of word's bytes [begin, end), a piece.
  void Append(absl::string_view word, size_t begin, size_t end,
              std::vector<Symbol>* symbols) const;
  int32_t UnknownId() const;

  const Vocabulary& vocabulary_;
  ByteTrie tokens_;
  std::vector<double> scores_;  // by id
  double unknown_score_ = 0;
  int32_t unknown_ = kNone;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> byte_ids_;  // -1: none
};

absl::Status Unigram::Load(const JsonNode& model) {
  CAPSTAN_RETURN_IF_ERROR(
      model.CheckMembers({"type", "unk_id", "vocab", "byte_fallback"}));
  CAPSTAN_ASSIGN_OR_RETURN(byte_fallback_, model.Bool("byte_fallback", false));
  double least = std::numeric_limits<double>::infinity();
  const JsonNode vocab = model.Member("vocab");
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::array entries, vocab.Array());
  for (const simdjson::dom::element entry : entries) {
    // Vocabulary::Load has seen that these are pairs.
    double score = 0;
    if (entry.at(1).get(score) != simdjson::SUCCESS) {
      return vocab.Invalid("the score of token ", scores_.size(),
                           " must be a number");
    }
    const absl::string_view token =
        vocabulary_.TokenOf(static_cast<int64_t>(scores_.size()));
    if (!token.empty()) tokens_.Set(token, vocabulary_.ModelIdOf(token));
    scores_.push_back(score);
    least = std::min(least, score);
  }
  unknown_score_ = least - kUnknownPenalty;
  const JsonNode unknown = model.Member("unk_id");
  if (!unknown.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, unknown.Int());
    if (id < 0 || id >= static_cast<int64_t>(scores_.size())) {
      return unknown.Invalid(id, " is the id of no token");
    }
    unknown_ = static_cast<int32_t>(id);
  }
  byte_ids_ = vocabulary_.ByteIds();
  return absl::OkStatus();
}

int32_t Unigram::UnknownId() const {
  if (unknown_ != kNone) return unknown_;
  throw UnknownWord(
      "a character is in no token of the vocabulary, and there is no "
      "model.unk_id");
}

// As SentencePiece's EncodeOptimized: the best way to each character's end,
// from left to right.
void Unigram::FindBest(absl::string_view word, Budget* budget,
                       std::vector<Node>* best) const {
  best->assign(word.size() + 1, Node());
  const auto is_better = [best](size_t begin, size_t end, double score) {
    const Node& node = (*best)[end];
    return node.id == kNone || score + (*best)[begin].score > node.score;
  };
  for (size_t begin = 0; begin < word.size();) {
    budget->Tick();
    const size_t bytes = CharacterBytes(word[begin]);
    bool single = false;  // whether the character is a token
    const double score = (*best)[begin].score;
    tokens_.ForEachPrefix(word.substr(begin), [&](int32_t id, size_t size) {
      if (is_better(begin, begin + size, scores_[id])) {
        (*best)[begin + size] = {id, begin, scores_[id] + score};
      }
      if (size == bytes) single = true;
    });
    if (!single && is_better(begin, begin + bytes, unknown_score_)) {
      (*best)[begin + bytes] = {UnknownId(), begin, unknown_score_ + score};
    }
    begin += bytes;
  }
}

void Unigram::Append(absl::string_view word, size_t begin, size_t end,
                     std::vector<Symbol>* symbols) const {
  const absl::string_view piece = word.substr(begin, end - begin);
  const auto size = static_cast<uint32_t>(piece.size());
  const int32_t id = vocabulary_.ModelIdOf(piece);
  if (id >= 0) {
    symbols->push_back({static_cast<uint32_t>(id), size, begin});
    return;
  }
  const auto byte_id = [this](char c) {
    return byte_ids_[static_cast<unsigned char>(c)];
  };
  if (byte_fallback_ && std::all_of(piece.begin(), piece.end(),
                                    [&](char c) { return byte_id(c) >= 0; })) {
    for (char c : piece) {
      symbols->push_back({static_cast<uint32_t>(byte_id(c)), size, begin});
    }
    return;
  }
  symbols->push_back({static_cast<uint32_t>(UnknownId()), size, begin});
}

void Unigram::Encode(absl::string_view word, Budget* budget,
                     std::vector<Symbol>* symbols) const {
  budget->Charge(word.size());
  std::vector<Node> best;
  FindBest(word, budget, &best);
  std::vector<size_t> ends;  // of pieces, from the last
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    // Unknown characters next to each other are one piece.
    const bool joins = !ends.empty() && best[end].id == unknown_ &&
                       best[ends.back()].id == unknown_;
    if (!joins) ends.push_back(end);
  }
  symbols->clear();
  size_t begin = 0;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    Append(word, begin, *end, symbols);
    begin = *end;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeUnigram(
    const JsonNode& model, const Vocabulary* vocabulary) {
  auto unigram = std::make_unique<Unigram>(vocabulary);
  CAPSTAN_RETURN_IF_ERROR(unigram->Load(model));
  return std::unique_ptr<Model>(std::move(unigram));
}

}  // namespace capstan::tokenizer
