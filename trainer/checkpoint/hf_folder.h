// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_
#define CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"

namespace capstan {

// What a run leaves behind.
struct FinalFolder {
  std::string path;  // OUTPUT/final
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t max_shard_bytes = int64_t{5} << 30;
  const Tokenizer* tokenizer = nullptr;  // if there is one
  std::string config_text;
  // Set: the model has that adapter, and the folder is one for PEFT.
  absl::optional<LoraSpec> lora;
  // The model that it began with, a folder or a name; "": none.
  std::string base_model;
  uint64_t seed = 0;  // the run's, of a base that has random values
  // More files, by name; rank 0's are written.
  std::vector<std::pair<std::string, std::string>> files;
  // Told, on rank 0, of what goes along from the base's folder; may be null.
  std::function<void(const std::string& line)> note;
};

// Writes a Hugging Face folder: weights in `dtype` as model.safetensors, or as
// shards with an index when they are more than `max_shard_bytes`; what
// Model::SaveConfig writes, with the tokenizer's special tokens where they
// differ; the tokenizer's files; capstan.json with `config_text`; `files`; and
// what the base's folder has beside weights that none of these is (its code,
// its licence: CopyModelFiles). Of a model with an adapter it is
// adapter_model.safetensors, in float32, and adapter_config.json in place of
// weights, config and the base's files.
//
// Written beside and renamed; an older folder is replaced only when the new one
// is whole. Collective: the strategy brings parameters to rank 0 one at a time.
// All ranks return the same verdict.
absl::Status SaveHuggingFaceFolder(const FinalFolder& folder,
                                   const Model& model, Strategy& strategy,
                                   ProcessGroup& group);

// Writes the tokens that begin, end and fill up a text into the folder's
// config.json and generation_config.json, as the tokenizer has them: what was
// trained ends with these. A list of ends that has it stays.
absl::Status SetSpecialTokens(const std::string& folder,
                              const Tokenizer& tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_
