// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_
#define CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/budget.h"
#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/json_node.h"

namespace capstan::tokenizer {

// The byte that a token "<0x0A>" of byte_fallback stands for; -1 if none.
int ByteOfToken(absl::string_view token);

// The tokens of a tokenizer.json, by id and by text. Views of texts are valid
// until the vocabulary is moved or destroyed.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // Loads the model's vocabulary, {"token": id, ..}, or Unigram's [["token",
  // score], ..], in which the last of equal tokens counts. INVALID_ARGUMENT for
  // a token with two ids or an id with two tokens.
  absl::Status Load(const JsonNode& vocab);
  // Adds a token that only added_tokens have; false if the id has one.
  bool AddOutsideModel(absl::string_view token, int64_t id);

  // How many tokens the model has.
  int64_t model_size() const { return model_size_; }
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
  // The model's tokens "<0x00>" to "<0xFF>"; -1 where there is none.
  std::array<int32_t, 256> ByteIds() const;
  // Whether `id`, in [0, size()), has a token.
  bool Has(int64_t id) const { return has_[id]; }
  absl::string_view TokenOf(int64_t id) const { return tokens_[id]; }
  // Whether the model can produce it. Added tokens outside its vocabulary are
  // only matched in text.
  bool InModel(int64_t id) const { return in_model_[id]; }

 private:
  absl::Status LoadObject(const JsonNode& vocab);
  absl::Status LoadArray(const JsonNode& vocab);
  absl::Status Add(absl::string_view token, int64_t id, const JsonNode& place);
  void Resize(int64_t size);

  int64_t model_size_ = 0;
  std::deque<std::string> tokens_;
  std::vector<bool> has_;
  std::vector<bool> in_model_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // keys view tokens_
};

// A token matched in the text before anything else.
struct AddedToken {
  int64_t id = -1;  // -1: no file says
  std::string content;
  bool single_word = false;  // not next to a word character
  bool lstrip = false;       // includes the white space to its left
  bool rstrip = false;
  bool normalized = false;  // matched after normalization
  bool special = false;
};

// The content and flags of an object; without "normalized", what isn't special
// is.
absl::Status ReadFlags(const JsonNode& node, AddedToken* token);

// From "added_tokens" of a tokenizer.json.
absl::StatusOr<std::vector<AddedToken>> MakeAddedTokens(const JsonNode& node);

// The added tokens as AddedVocabulary of Hugging Face's tokenizers keeps them.
class AddedTokens {
 public:
  // Adds those of a file in order. A token that has an id, of the model or
  // added, gets new flags; others get the next id, and are added to
  // *vocabulary. INVALID_ARGUMENT if a file says another id.
  absl::Status Add(std::vector<AddedToken> tokens, Vocabulary* vocabulary);

  // By id. `special` is true once a token has been that.
  const std::map<int64_t, AddedToken>& all() const { return all_; }

 private:
  std::map<int64_t, AddedToken> all_;
};

// Finds tokens in a text. Thread-safe after the last Add.
class AddedTokenFinder {
 public:
  struct Match {
    const AddedToken* token;
    size_t begin;  // includes stripped white space
    size_t end;
  };
  // Where a search goes on.
  struct Search {
    size_t at = 0;
    size_t done = 0;  // end of the last match with its white space
  };

  // `spelling` (not empty) is how the token is written in the searched texts.
  // `token` must outlive the finder. If two have a spelling, the first counts.
  void Add(absl::string_view spelling, const AddedToken* token);
  // Special tokens are text: what spells one isn't searched, either.
  void SkipSpecial() { skip_special_ = true; }

  // The leftmost, then longest, match in what isn't searched yet. White space
  // to the left of it counts from the end of the last match; a match may begin
  // in white space that the last one has taken.
  bool Next(absl::string_view text, Budget* budget, Search* search,
            Match* match) const;

 private:
  ByteTrie trie_;  // to indices of tokens_
  std::vector<const AddedToken*> tokens_;
  bool skip_special_ = false;
  std::array<bool, 256> first_ = {};  // first bytes of spellings
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_
