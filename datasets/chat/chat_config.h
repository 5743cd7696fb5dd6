// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_CHAT_CONFIG_H_
#define CAPSTAN_DATASETS_CHAT_CHAT_CONFIG_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "datasets/chat/chat.pb.h"

namespace capstan::chat {

// max_length where neither the config nor the model's positions say less.
inline constexpr int64_t kDefaultLength = 1024;

// Fills in defaults, for CurrentModelTokenizer's model, and turns `path` into a
// source. FieldError for what doesn't
// fit together.
absl::StatusOr<Config> Complete(Config config);

// Of a complete config: PREFERENCE, UNPAIRED or PROMPT, if its sources are of
// that kind, whose batches are unlike those of texts, else AUTO. Either all are
// or none, and these aren't packed.
absl::StatusOr<Kind> KindOfBatches(const Config& config);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_CHAT_CONFIG_H_
