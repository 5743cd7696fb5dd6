// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_
#define CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_

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

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_VOCABULARY_H_
