// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_
#define CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/budget.h"
#include "text/tokenizer/json_node.h"

namespace capstan::tokenizer {

// The tokens of a tokenizer.json, by id and by text. Views of texts are valid
// until the vocabulary is moved or destroyed.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // Loads the model's vocabulary, {"token": id, ..}, and those "added_tokens"
  // it lacks. INVALID_ARGUMENT for a token with two ids or an id with two
  // tokens.
  absl::Status Load(const JsonNode& vocab, const JsonNode& added_tokens);

  // The greatest id plus one.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // The id of a model or added token; -1 if none.
  int32_t IdOf(absl::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  // -1 if the model can't produce it.
  int32_t ModelIdOf(absl::string_view token) const {
    const int32_t id = IdOf(token);
    return id >= 0 && InModel(id) ? id : -1;
  }
  // Whether `id`, in [0, size()), has a token.
  bool Has(int64_t id) const { return has_[id]; }
  absl::string_view TokenOf(int64_t id) const { return tokens_[id]; }
  // Whether the model can produce it. Added tokens outside its vocabulary are
  // only matched in text.
  bool InModel(int64_t id) const { return in_model_[id]; }

 private:
  absl::Status Add(absl::string_view token, int64_t id, const JsonNode& place);

  std::vector<std::string> tokens_;
  std::vector<bool> has_;
  std::vector<bool> in_model_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // keys view tokens_
};

// A token matched in the text before anything else.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool single_word = false;  // not next to a word character
  bool lstrip = false;       // includes the white space to its left
  bool rstrip = false;
  bool normalized = false;  // matched after normalization
  bool special = false;
};

// From "added_tokens" of a tokenizer.json.
absl::StatusOr<std::vector<AddedToken>> MakeAddedTokens(const JsonNode& node);

// Finds tokens in a text. Thread-safe after the last Add.
class AddedTokenFinder {
 public:
  struct Match {
    const AddedToken* token;
    size_t begin;  // includes stripped white space
    size_t end;
  };

  // `spelling` (not empty) is how the token is written in the searched texts.
  // `token` must outlive the finder.
  void Add(absl::string_view spelling, const AddedToken* token);

  bool empty() const { return nodes_ == 1; }

  // The leftmost, then longest, match that begins at or after `from`; text
  // before `from` is not stripped. *search is the resume position, initially 0.
  bool Next(absl::string_view text, size_t from, Budget* budget, size_t* search,
            Match* match) const;

 private:
  const AddedToken* Longest(absl::string_view text, size_t at,
                            size_t* end) const;

  // A trie of spellings: (node, byte) to node; node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  absl::flat_hash_map<uint32_t, const AddedToken*> ends_;
  uint32_t nodes_ = 1;
  std::array<bool, 256> first_ = {};  // first bytes of spellings
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_
