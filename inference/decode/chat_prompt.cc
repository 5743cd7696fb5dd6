// SPDX-License-Identifier: Apache-2.0
#include "inference/decode/chat_prompt.h"

#include "absl/types/optional.h"
#include "base/status.h"
#include "plugins/sdk/lib/chat_variables.h"

namespace capstan {

absl::StatusOr<std::unique_ptr<ChatTemplate>> FindChatTemplate(
    const std::string& name, const Tokenizer& tokenizer) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> found =
      ChatTemplate::Find(name, tokenizer);
  CAPSTAN_RETURN_IF_ERROR(found.status());
  CAPSTAN_RETURN_IF_ERROR((*found)->Check(tokenizer));
  return found;
}

absl::Status CheckTemplateKwargs(const std::string& json,
                                 const ChatTemplate& chat_template) {
  const absl::Status known = CheckChatVariables(json, chat_template);
  return known.ok() ? known
                    : FieldError("--chat_template_kwargs", known.message());
}

std::vector<int64_t> AnswerStops(const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer) {
  std::vector<int64_t> stops;
  for (const absl::optional<int64_t> id :
       {tokenizer.IdOf(chat_template.end_of_turn()),
        absl::optional<int64_t>(tokenizer.special_ids().eos)}) {
    if (id.has_value() && *id >= 0) stops.push_back(*id);
  }
  return stops;
}

}  // namespace capstan
