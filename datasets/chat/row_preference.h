// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_ROW_PREFERENCE_H_
#define CAPSTAN_DATASETS_CHAT_ROW_PREFERENCE_H_

#include <simdjson.h>

#include "absl/status/status.h"
#include "datasets/chat/row.h"

namespace capstan::chat {

// Fills an empty `row` and its `rejected` from "prompt", "chosen" and
// "rejected", as TRL knows them: texts or lists of messages; without a prompt
// it is what both begin with. INVALID_ARGUMENT: they don't make a pair.
absl::Status FillPreference(const simdjson::dom::object& from, Row* row);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_ROW_PREFERENCE_H_
