// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_VOCAB_FILES_H_
#define CAPSTAN_TEXT_TOKENIZER_VOCAB_FILES_H_

#include <map>
#include <string>

#include "absl/status/status.h"

namespace capstan::tokenizer {

// Makes the tokenizer.json that a folder lacks from its vocab.json and
// merges.txt, as the tokenizer's class in transformers 5.23 does: that which
// tokenizer_config.json names as tokenizer_class or else that of config.json's
// `model_type`. Tokens that the class has by itself go into
// tokenizer_config.json. `files` has contents by name and loses both.
// UNIMPLEMENTED for classes other than GPT2Tokenizer and Qwen2Tokenizer.
absl::Status MakeTokenizerJson(const std::string& model_type,
                               std::map<std::string, std::string>* files);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_VOCAB_FILES_H_
