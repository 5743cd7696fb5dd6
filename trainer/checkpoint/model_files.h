// SPDX-License-Identifier: Apache-2.0
//
// What lies in a model's folder beside its weights: the code that its config
// points to, its licence, and what else its tools read.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MODEL_FILES_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MODEL_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// Larger files that aren't weights stay behind, and are named.
constexpr int64_t kMostModelFileBytes = int64_t{64} << 20;
constexpr int64_t kMostModelFilesBytes = int64_t{128} << 20;  // all together

struct ModelFiles {
  std::vector<std::string> copied;  // by name
  // What is missing after all: "huge.json (larger than 64 MiB)".
  std::vector<std::string> left;
};

// Copies what a model needs beside weights from its Hugging Face folder `from`
// into `to`, which has its config.json already; a file that `to` has stays as
// it is. Not copied are weights of any format and their indices, hidden files,
// what trainers leave (optimizers, logs, adapters), the model card, tokenizer
// files where `own_tokenizer` says that `to` has its own, and folders (onnx/,
// runs/) but for what config.json's auto_map names in them. Links are followed
// within the folder alone, and from a snapshot of Hugging Face's cache to its
// repository's blobs; those of config.json, generation_config.json and a
// tokenizer's files, which are read anyway, wherever they lead. Fine if there
// is no folder `from`.
absl::StatusOr<ModelFiles> CopyModelFiles(const std::string& from,
                                          const std::string& to,
                                          bool own_tokenizer);

// One line for people, of what was copied into the folder `to`; "" if there is
// nothing to say.
std::string ModelFilesNote(const std::string& from, const std::string& to,
                           const ModelFiles& files);

// The class of transformers that the auto_map of the folder's config.json has
// for its model, AutoModelForCausalLM rather than AutoModel; "": none.
std::string AutoClass(const std::string& folder);

// "ORGANISATION/MODEL" if `folder` is a snapshot in Hugging Face's cache
// (models--ORGANISATION--MODEL/snapshots/REVISION), else "".
std::string HubName(const std::string& folder);

// What people call the model in `folder`: its HubName, or its last name, of a
// run's final folder (runs/NAME/TIME/final) the run's.
std::string ModelName(const std::string& folder);

// The line of a model card's metadata that names the model in `folder`: of one
// from the hub "base_model: ..", of another a comment, for its place there
// isn't known.
std::string BaseModelMetadata(const std::string& folder);

// Whether a tokenizer's file goes by that name.
bool IsTokenizerFile(const std::string& name);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MODEL_FILES_H_
