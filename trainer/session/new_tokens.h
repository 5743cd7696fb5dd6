// SPDX-License-Identifier: Apache-2.0
//
// What tokens that a config adds to the model's tokenizer make of the model.
#ifndef CAPSTAN_TRAINER_SESSION_NEW_TOKENS_H_
#define CAPSTAN_TRAINER_SESSION_NEW_TOKENS_H_

#include <string>

#include "absl/status/status.h"
#include "host/config/load_config.h"

namespace capstan {

// Writes what add_tokens, add_special_tokens and chat_format ask for into the
// fields that models and adapters read: the model's vocab_size, if its
// embedding has fewer rows than the tokenizer then has tokens (spare rows
// stay), and modules_to_save, so that an adapter's run trains the new rows. A
// line for each goes to the config's notes. A second call changes nothing.
// `resumed_from` as in TokenizerFolders.
absl::Status SettleNewTokens(LoadedConfig* loaded, PluginHost& host,
                             const std::string& resumed_from = "");

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_NEW_TOKENS_H_
