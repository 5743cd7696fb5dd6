// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_EXPORT_LLAMA_TOKENIZER_H_
#define CAPSTAN_DESK_EXPORT_LLAMA_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/export/gguf_file.h"

namespace capstan {

// A note: Metaspace's "first" puts a space before a text's begin alone.
constexpr char kSpaceNote[] =
    "tokenizer.json: prepend_scheme \"first\": llama.cpp also puts a space "
    "before text that follows a special token, so that chats differ from those "
    "that were trained on";

// The tokenizer of a Hugging Face folder as llama.cpp reads it, the values
// tokenizer.*: a byte-level BPE ("gpt2"), or one of SentencePiece's with "▁"
// and bytes ("llama"). There are `rows` tokens, those of the model's embedding.
// llama.cpp knows ways of splitting a text into words by names: `pre` is one,
// or
// "", if it is to be found by what the tokenizer does. UNIMPLEMENTED, naming
// file and key, for what llama.cpp would do otherwise; notes for the user, a
// line each, are added to `notes`.
absl::StatusOr<GgufValues> TokenizerValues(const std::string& folder,
                                           int64_t rows, const std::string& pre,
                                           std::vector<std::string>* notes);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_LLAMA_TOKENIZER_H_
