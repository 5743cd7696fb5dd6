// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_CHAT_TOKENIZER_H_
#define CAPSTAN_DATASETS_CHAT_CHAT_TOKENIZER_H_

#include <memory>

#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace chat {

// `tokenizer` with another chat template than its own, if it has one: the
// template's jinja is saved with it, the end of a turn is its eos, and, where
// it has no pad token, its pad. For ChatML, as is usual, bos is what begins a
// turn and pad what ends it, whatever they were. The tokens stay the same.
std::unique_ptr<Tokenizer> WithChatTemplate(
    std::unique_ptr<Tokenizer> tokenizer, const ChatTemplate& chat_template);

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_CHAT_TOKENIZER_H_
