// SPDX-License-Identifier: Apache-2.0
//
// The files in a model's folder other than weights: code that its config refers
// to, licence, and whatever else its tools read.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MODEL_FILES_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MODEL_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

// Larger files that aren't weights are skipped and reported.
constexpr int64_t kMostModelFileBytes = int64_t{64} << 20;
constexpr int64_t kMostModelFilesBytes = int64_t{128} << 20;  // in total

struct ModelFiles {
  std::vector<std::string> copied;  // by name
  // Files that were skipped: "huge.json (larger than 64 MiB)".
  std::vector<std::string> left;
};

// Copies a model's files other than weights from its Hugging Face folder `from`
// to `to`, which already has its config.json; existing files in `to` are kept.
// Skips weights of any format and their indices, hidden files, training
// leftovers (optimizers, logs, adapters), the model card, tokenizer files if
// `own_tokenizer`, and folders (onnx/, runs/) except for files named in
// config.json's auto_map. Symlinks are followed only within the folder, and
// from a snapshot in Hugging Face's cache to its repository's blobs;
// config.json, generation_config.json and tokenizer files, which are read
// anyway, may point anywhere. OK if `from` isn't a folder.
absl::StatusOr<ModelFiles> CopyModelFiles(const std::string& from,
                                          const std::string& to,
                                          bool own_tokenizer);

// A one-line note to the user about what was copied to `to`; "" if nothing.
std::string ModelFilesNote(const std::string& from, const std::string& to,
                           const ModelFiles& files);

// Returns the transformers class that config.json's auto_map in `folder` gives
// for its model, AutoModelForCausalLM in preference to AutoModel; "": none.
std::string AutoClass(const std::string& folder);

// "ORGANISATION/MODEL" if `folder` is a snapshot in Hugging Face's cache
// (models--ORGANISATION--MODEL/snapshots/REVISION), else "".
std::string HubName(const std::string& folder);

// Returns the display name of the model in `folder`: its HubName, else the
// folder's last component, or the run's name for a run's final folder
// (runs/NAME/TIME/final).
std::string ModelName(const std::string& folder);

// Returns where users of a model made from the one in `folder` find the latter:
// its HubName, or else "../NAME", beside their folder. Reveals nothing of this
// machine's folders.
std::string PublicPlace(const std::string& folder);

// The model card metadata line that names the model in `folder`: "base_model:
// .." for a hub model, otherwise a comment, as its hub name is unknown.
std::string BaseModelMetadata(const std::string& folder);

// Whether `name` is the name of a tokenizer file.
bool IsTokenizerFile(const std::string& name);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MODEL_FILES_H_
