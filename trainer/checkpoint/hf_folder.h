// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_
#define CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"

namespace capstan {

// Writes `folder` (OUTPUT/final) as a Hugging Face folder: weights in `dtype`
// as model.safetensors, or as shards with an index when they are more than
// `max_shard_bytes`; what Model::SaveConfig writes; the tokenizer's files if
// `tokenizer` isn't null; capstan.json with `config_text`. Written beside and
// renamed; an older `folder` is replaced only when the new one is whole.
// Collective: the strategy brings parameters to rank 0 one at a time. All
// ranks return the same verdict.
absl::Status SaveHuggingFaceFolder(const std::string& folder,
                                   c10::ScalarType dtype,
                                   int64_t max_shard_bytes, const Model& model,
                                   Strategy& strategy, ProcessGroup& group,
                                   const Tokenizer* tokenizer,
                                   const std::string& config_text);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_
