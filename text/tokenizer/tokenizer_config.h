// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_TOKENIZER_CONFIG_H_
#define CAPSTAN_TEXT_TOKENIZER_TOKENIZER_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace capstan::tokenizer {

// Contents of the tokenizer files of a Hugging Face folder.
struct FolderFiles {
  std::string tokenizer_json;
  absl::optional<std::string> tokenizer_config_json;
  absl::optional<std::string> chat_template_jinja;
};

// NOT_FOUND without a tokenizer.json.
absl::StatusOr<FolderFiles> ReadFolderFiles(const std::string& folder);
absl::Status WriteFolderFiles(const FolderFiles& files,
                              const std::string& folder);

// What tokenizer_config.json adds to tokenizer.json.
struct TokenizerConfig {
  Tokenizer::SpecialIds special_ids;
  std::string chat_template;  // the default if several; "" if none
};

// Applies add_bos_token and add_eos_token to `ends`.
absl::StatusOr<TokenizerConfig> MakeTokenizerConfig(
    const JsonNode& node, const Vocabulary& vocabulary, Ends* ends);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_TOKENIZER_CONFIG_H_
