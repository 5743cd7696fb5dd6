// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_LIB_BYTE_TOKENIZER_H_
#define CAPSTAN_PLUGINS_SDK_LIB_BYTE_TOKENIZER_H_

#include <memory>
#include <string>

#include "plugins/sdk/tokenizer.h"

namespace capstan {

// A tokenizer with 256 tokens: each byte is a token, and its value the id.
std::unique_ptr<Tokenizer> NewByteTokenizer();

// Its tokenizer.json: a byte-level BPE without merges.
std::string ByteTokenizerJson();

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_BYTE_TOKENIZER_H_
