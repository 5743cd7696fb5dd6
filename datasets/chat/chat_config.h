// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_CHAT_CONFIG_H_
#define CAPSTAN_DATASETS_CHAT_CHAT_CONFIG_H_

#include "absl/status/statusor.h"
#include "datasets/chat/chat.pb.h"

namespace capstan::chat {

// Fills in defaults and turns `path` into a source. FieldError for what doesn't
// fit together.
absl::StatusOr<Config> Complete(Config config);

// Of a complete config: whether its sources are preferences. Either all are or
// none, and these aren't packed.
absl::StatusOr<bool> ArePairs(const Config& config);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_CHAT_CONFIG_H_
