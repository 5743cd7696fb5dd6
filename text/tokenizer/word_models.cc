// SPDX-License-Identifier: Apache-2.0
//
// WordPiece and WordLevel.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// The token for what the vocabulary lacks. Files may name one that isn't there,
// which matters when it is needed.
class Unknown {
 public:
  Unknown(std::string token, const Vocabulary& vocabulary)
      : token_(std::move(token)), id_(vocabulary.ModelIdOf(token_)) {}

  bool missing() const { return id_ < 0; }
  uint32_t id() const {
    if (id_ >= 0) return static_cast<uint32_t>(id_);
    throw UnknownWord(absl::StrCat(
        "a word isn't in the vocabulary, nor is model.unk_token \"", token_,
        "\", which stands for such words"));
  }

 private:
  const std::string token_;
  const int32_t id_;
};

void SetAll(absl::string_view word, uint32_t id, std::vector<Symbol>* symbols) {
  symbols->assign(1, {id, static_cast<uint32_t>(word.size()), 0});
}

class WordLevel final : public Model {
 public:
  WordLevel(std::string unknown, const Vocabulary* vocabulary)
      : vocabulary_(*vocabulary), unknown_(std::move(unknown), *vocabulary) {}

  void Encode(absl::string_view word, Budget* budget,
              std::vector<Symbol>* symbols) const override {
    budget->Tick();
    const int32_t id = vocabulary_.ModelIdOf(word);
    SetAll(word, id >= 0 ? static_cast<uint32_t>(id) : unknown_.id(), symbols);
  }
  bool refuses_unknown() const override { return unknown_.missing(); }

 private:
  const Vocabulary& vocabulary_;
  const Unknown unknown_;
};

class WordPiece final : public Model {
 public:
  WordPiece(std::string unknown, std::string prefix, int64_t max_characters,
            const Vocabulary* vocabulary)
      : vocabulary_(*vocabulary),
        unknown_(std::move(unknown), *vocabulary),
        prefix_(std::move(prefix)),
        max_characters_(max_characters) {
    for (int64_t id = 0; id < vocabulary->size(); ++id) {
      longest_ = std::max(longest_, vocabulary->TokenOf(id).size());
    }
  }

  void Encode(absl::string_view word, Budget* budget,
              std::vector<Symbol>* symbols) const override {
    symbols->clear();
    const auto characters = static_cast<int64_t>(std::count_if(
        word.begin(), word.end(), [](char c) { return !IsContinuation(c); }));
    size_t begin = 0;
    if (characters <= max_characters_) {
      while (begin < word.size()) {
        const Symbol piece = LongestAt(word, begin, budget);
        if (piece.size == 0) break;
        symbols->push_back(piece);
        begin += piece.size;
      }
    }
    if (begin < word.size()) SetAll(word, unknown_.id(), symbols);
  }
  bool refuses_unknown() const override { return unknown_.missing(); }

 private:
  // Its size is 0 if there is none.
  Symbol LongestAt(absl::string_view word, size_t begin, Budget* budget) const {
    std::string rest;
    absl::string_view text = word;
    size_t marks = 0;
    if (begin > 0) {
      marks = prefix_.size();
      rest = absl::StrCat(
          prefix_, word.substr(begin, longest_ - std::min(longest_, marks)));
      text = rest;
    }
    size_t size = std::min(text.size(), longest_);
    while (size > marks) {
      budget->Tick();
      // Only whole characters can match.
      const int32_t id = vocabulary_.ModelIdOf(text.substr(0, size));
      if (id >= 0) {
        return {static_cast<uint32_t>(id), static_cast<uint32_t>(size - marks),
                begin};
      }
      --size;
    }
    return {0, 0, begin};
  }

  const Vocabulary& vocabulary_;
  const Unknown unknown_;
  const std::string prefix_;
  const int64_t max_characters_;
  size_t longest_ = 0;  // token, in bytes
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeWordPiece(
    const JsonNode& model, const Vocabulary* vocabulary) {
  CAPSTAN_RETURN_IF_ERROR(
      model.CheckMembers({"type", "unk_token", "continuing_subword_prefix",
                          "max_input_chars_per_word", "vocab"}));
  CAPSTAN_ASSIGN_OR_RETURN(std::string unknown, model.String("unk_token"));
  CAPSTAN_ASSIGN_OR_RETURN(std::string prefix,
                           model.String("continuing_subword_prefix"));
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t max_characters,
                           model.Int("max_input_chars_per_word"));
  return std::make_unique<WordPiece>(std::move(unknown), std::move(prefix),
                                     max_characters, vocabulary);
}

absl::StatusOr<std::unique_ptr<Model>> MakeWordLevel(
    const JsonNode& model, const Vocabulary* vocabulary) {
  CAPSTAN_RETURN_IF_ERROR(model.CheckMembers({"type", "unk_token", "vocab"}));
  CAPSTAN_ASSIGN_OR_RETURN(std::string unknown, model.String("unk_token"));
  return std::make_unique<WordLevel>(std::move(unknown), vocabulary);
}

}  // namespace capstan::tokenizer
