// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_LIB_CHAT_VARIABLES_H_
#define CAPSTAN_PLUGINS_SDK_LIB_CHAT_VARIABLES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/chat_template.h"

namespace capstan {

// Checks the variables that a user gives a chat template (ChatInput::variables;
// "": none). INVALID_ARGUMENT, for the caller to say where they are from, if
// `json` isn't an object, or has a key that the template nowhere mentions: it
// would be without effect.
absl::Status CheckChatVariables(absl::string_view json,
                                const ChatTemplate& chat_template);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_CHAT_VARIABLES_H_
