// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_DECODE_CHAT_PROMPT_H_
#define CAPSTAN_INFERENCE_DECODE_CHAT_PROMPT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// The template `name`, or, if empty, the tokenizer's own. Its special tokens
// must be in the tokenizer.
absl::StatusOr<std::unique_ptr<ChatTemplate>> FindChatTemplate(
    const std::string& name, const Tokenizer& tokenizer);

// CheckChatVariables for the flag --chat_template_kwargs.
absl::Status CheckTemplateKwargs(const std::string& json,
                                 const ChatTemplate& chat_template);

// The tokens that end an answer: end of turn and end of text.
std::vector<int64_t> AnswerStops(const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_DECODE_CHAT_PROMPT_H_
