// SPDX-License-Identifier: Apache-2.0
//
// What the files beside tokenizer.json say about tokens, read as transformers
// 5.23 does (PreTrainedTokenizerFast.from_pretrained).
#ifndef CAPSTAN_TEXT_TOKENIZER_SPECIAL_TOKENS_H_
#define CAPSTAN_TEXT_TOKENIZER_SPECIAL_TOKENS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace capstan::tokenizer {

// A token as a file writes it: "<s>", or an object with flags.
struct WrittenToken : AddedToken {
  bool plain = true;  // no object
  bool says_normalized = false;

  bool operator==(const WrittenToken& other) const;
};

// Tokens by the key that names them, in the order of the file.
using NamedTokens = std::vector<std::pair<std::string, WrittenToken>>;

// Tokens that files name, before they are merged. A key may be there with no
// token: null, which differs from absence for "pad_token".
class SpecialTokens {
 public:
  // tokenizer_config.json; first.
  absl::Status ReadConfig(const JsonNode& root);
  // special_tokens_map.json, then added_tokens.json: matter only if
  // tokenizer_config.json has no added_tokens_decoder.
  absl::Status ReadMap(const JsonNode& root);
  absl::Status ReadAddedTokens(const JsonNode& root);
  // tokenizer.json; last.
  absl::Status ReadTokenizer(const JsonNode& root);
  // In the order in which they are added to those of tokenizer.json; ids aren't
  // set.
  std::vector<AddedToken> Added() const;
  // The text of "bos_token", ..; "" if there is none.
  std::string Named(const std::string& name) const;
  bool split_special_tokens() const { return split_special_tokens_; }

 private:
  absl::Status SetNamed(const std::string& name, const JsonNode& node);
  // Those of Named and of a model, in the order of transformers.
  NamedTokens AllNamed() const;

  std::map<std::string, absl::optional<WrittenToken>> named_;
  NamedTokens model_objects_;  // "image_token": {..}, or of a map's file
  NamedTokens model_texts_;    // "image_token": "..", extra_special_tokens {..}
  absl::optional<std::vector<WrittenToken>> extra_;
  bool has_decoder_ = false;  // added_tokens_decoder
  std::map<int64_t, WrittenToken> decoder_;
  bool split_special_tokens_ = false;
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_SPECIAL_TOKENS_H_
