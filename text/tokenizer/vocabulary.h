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
#include "text/tokenizer/json_node.h"

namespace capstan {
namespace tokenizer {

// Tokens as tokenizer.json writes them, by id and by text. Views of texts stay
// valid as long as the vocabulary lives where it is.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // The model's vocabulary, {"token": id, ..}, and those of the array
  // "added_tokens" that it hasn't. INVALID_ARGUMENT for a token with two ids
  // and an id with two tokens.
  absl::Status Load(const JsonNode& vocab, const JsonNode& added_tokens);

  // One more than the greatest id.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // Of the model's vocabulary or added; -1 if there is none.
  int32_t IdOf(absl::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  // Ids from 0 to size() - 1 that no token has.
  bool Has(int64_t id) const { return has_[id]; }
  absl::string_view TokenOf(int64_t id) const { return tokens_[id]; }
  // Whether the model can give it: added tokens that its vocabulary doesn't
  // have are found in the text only.
  bool InModel(int64_t id) const { return in_model_[id]; }

 private:
  absl::Status Add(absl::string_view token, int64_t id, const JsonNode& place);

  std::vector<std::string> tokens_;
  std::vector<bool> has_;
  std::vector<bool> in_model_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // views tokens_
};

// A token that is found in the text before anything else.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool single_word = false;  // not beside a word character
  bool lstrip = false;       // takes the white space to its left too
  bool rstrip = false;
  bool normalized = false;  // found in the text when it is normalized
  bool special = false;
};

// "added_tokens" of a tokenizer.json.
absl::StatusOr<std::vector<AddedToken>> MakeAddedTokens(const JsonNode& node);

// Finds tokens in a text. Thread-safe once they are added.
class AddedTokenFinder {
 public:
  struct Match {
    const AddedToken* token;
    size_t begin;  // with the white space that it takes
    size_t end;
  };

  // `spelling`: how it is written in the texts to be searched; not empty. The
  // token must outlive the finder.
  void Add(absl::string_view spelling, const AddedToken* token);

  bool empty() const { return nodes_ == 1; }

  // The leftmost match that begins at or behind `from`, the longest of those
  // that begin there; what lies before `from` is taken by none. *search is
  // where to look, at first 0, and moves on.
  bool Next(absl::string_view text, size_t from, size_t* search,
            Match* match) const;

 private:
  const AddedToken* Longest(absl::string_view text, size_t at,
                            size_t* end) const;

  // A tree of spellings: (node, byte) to node; node 0 is its root.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  absl::flat_hash_map<uint32_t, const AddedToken*> ends_;
  uint32_t nodes_ = 1;
  std::array<bool, 256> first_ = {};  // bytes that a spelling begins with
};

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_
