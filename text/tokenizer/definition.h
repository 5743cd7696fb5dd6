// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_DEFINITION_H_
#define CAPSTAN_TEXT_TOKENIZER_DEFINITION_H_

#include <string>

#include "absl/status/statusor.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::tokenizer {

// What the tokens of a text depend on: the text of a folder's tokenizer.json
// (the one that is made where vocab.json and merges.txt take its place), and,
// if the files beside it add tokens or change some, those. The folder is read
// only if `tokenizer` isn't what LoadTokenizer makes of it.
absl::StatusOr<std::string> TokenizerDefinition(const Tokenizer& tokenizer,
                                                const std::string& folder);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_DEFINITION_H_
