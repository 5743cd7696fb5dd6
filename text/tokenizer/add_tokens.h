// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_ADD_TOKENS_H_
#define CAPSTAN_TEXT_TOKENIZER_ADD_TOKENS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::tokenizer {

struct TokensToAdd {
  std::vector<std::string> plain;
  std::vector<std::string> special;
  // Spellings of tokens that it then has, and its chat template; "": those that
  // it has stay.
  std::string bos, eos, pad;
  std::string chat_template;
};

// Writes the files of the tokenizer in `folder` to the existing folder `to`,
// with what is added: as transformers' add_tokens does, each token that it
// lacks gets the next id, and one that isn't special yet becomes so. Returns
// how many ids are new. Errors name folder and file.
absl::StatusOr<int64_t> AddTokens(const std::string& folder,
                                  const TokensToAdd& tokens,
                                  const std::string& to);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_ADD_TOKENS_H_
