// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_TOKENIZER_CONFIG_H_
#define CAPSTAN_TEXT_TOKENIZER_TOKENIZER_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/ends.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace capstan {
namespace tokenizer {

// What a tokenizer_config.json says that tokenizer.json doesn't.
struct TokenizerConfig {
  Tokenizer::SpecialIds special_ids;
  std::string chat_template;  // the default one of several; "" if none
};

// `ends` is changed as add_bos_token and add_eos_token say.
absl::StatusOr<TokenizerConfig> MakeTokenizerConfig(
    const JsonNode& node, const Vocabulary& vocabulary, Ends* ends);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_TOKENIZER_CONFIG_H_
