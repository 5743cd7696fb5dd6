// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/folder_files.h"

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace tokenizer {
namespace {

constexpr char kTokenizer[] = "/tokenizer.json";
constexpr char kConfig[] = "/tokenizer_config.json";
constexpr char kChatTemplate[] = "/chat_template.jinja";

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (!PathExists(path)) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }
  return ReadWholeFile(path);
}

absl::StatusOr<absl::optional<std::string>> ReadIfThere(
    const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (absl::IsNotFound(bytes.status())) return absl::nullopt;
  CAPSTAN_RETURN_IF_ERROR(bytes.status());
  return absl::optional<std::string>(*std::move(bytes));
}

}  // namespace

absl::StatusOr<FolderFiles> ReadFolderFiles(const std::string& folder) {
  FolderFiles files;
  CAPSTAN_ASSIGN_OR_RETURN(files.tokenizer_json, ReadFile(folder + kTokenizer));
  CAPSTAN_ASSIGN_OR_RETURN(files.tokenizer_config_json,
                           ReadIfThere(folder + kConfig));
  CAPSTAN_ASSIGN_OR_RETURN(files.chat_template_jinja,
                           ReadIfThere(folder + kChatTemplate));
  return files;
}

absl::Status WriteFolderFiles(const FolderFiles& files,
                              const std::string& folder) {
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(folder + kTokenizer, files.tokenizer_json));
  if (files.tokenizer_config_json.has_value()) {
    CAPSTAN_RETURN_IF_ERROR(
        WriteWholeFile(folder + kConfig, *files.tokenizer_config_json));
  }
  if (files.chat_template_jinja.has_value()) {
    CAPSTAN_RETURN_IF_ERROR(
        WriteWholeFile(folder + kChatTemplate, *files.chat_template_jinja));
  }
  return absl::OkStatus();
}

}  // namespace tokenizer
}  // namespace capstan
