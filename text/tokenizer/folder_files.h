// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_FOLDER_FILES_H_
#define CAPSTAN_TEXT_TOKENIZER_FOLDER_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace capstan {
namespace tokenizer {

// The bytes of a Hugging Face folder's tokenizer files.
struct FolderFiles {
  std::string tokenizer_json;
  absl::optional<std::string> tokenizer_config_json;
  absl::optional<std::string> chat_template_jinja;
};

// NOT_FOUND without a tokenizer.json.
absl::StatusOr<FolderFiles> ReadFolderFiles(const std::string& folder);
absl::Status WriteFolderFiles(const FolderFiles& files,
                              const std::string& folder);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_FOLDER_FILES_H_
