// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_
#define CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/checkpoint/weight_files.h"

namespace capstan {

// The result of a run.
struct FinalFolder {
  std::string path;  // OUTPUT/final
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t max_shard_bytes = kMaxShardBytes;
  const Tokenizer* tokenizer = nullptr;  // null: none
  std::string config_text;  // the run's, without this machine's folders
  // If set, the model has this adapter, and a PEFT folder is written.
  absl::optional<AdapterSpec> lora;
  // The model that training started from, a folder or a name; "": none.
  std::string base_model;
  // DigestOfWeights of an adapter's base; "": unknown, as of one without a
  // folder.
  std::string base_weights;
  // Additional files by name; rank 0's are written.
  std::vector<std::pair<std::string, std::string>> files;
  // Called on rank 0 with a line about files copied from the base; may be null.
  std::function<void(const std::string& line)> note;
};

// Writes a Hugging Face folder: weights in `dtype` as model.safetensors, or as
// shards with an index if larger than `max_shard_bytes`; Model::SaveConfig's
// files, with the tokenizer's special tokens where they differ; the tokenizer's
// files; capstan.json with `config_text` and a digest of the weights; `files`;
// and the base folder's remaining files (code, licence: CopyModelFiles). For an
// adapter, adapter_model.safetensors (float32) and adapter_config.json replace
// weights, config and the base's files.
//
// Written to a hidden sibling and renamed; an existing folder is replaced only
// once the new one is complete. Collective: the strategy brings parameters to
// rank 0 one at a time. All ranks return the same outcome.
absl::Status SaveHuggingFaceFolder(const FinalFolder& folder,
                                   const Model& model, Strategy& strategy,
                                   ProcessGroup& group);

// Writes the tokenizer's BOS, EOS and padding tokens to the folder's
// config.json and generation_config.json, since these end the texts trained on.
// A list of EOS tokens that includes the tokenizer's is kept.
absl::Status SetSpecialTokens(const std::string& folder,
                              const Tokenizer& tokenizer);

// A folder's capstan.json: `config` of the run and, for an adapter, the digest
// of its base's weights (base_weights.h), if known, and what that was quantised
// to for training; and the digest of the folder's own weights, if given.
std::string CapstanJson(const std::string& config,
                        const std::string& base_weights = "",
                        Quantize quantize = Quantize::kFolders,
                        const std::string& weights = "");

// The file or folder that has a final folder's weights.
std::string WeightsOfFinal(const std::string& folder);

// Reads all weights of a final folder and compares them with the digest in its
// capstan.json; false if that has none, as an earlier version's. DATA_LOSS if
// they differ or can't be read.
absl::StatusOr<bool> CheckFinalFolder(const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_HF_FOLDER_H_
