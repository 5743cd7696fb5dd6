// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/tokenizer_config.h"

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan::tokenizer {
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

namespace {

// "bos_token": "<s>", or {"content": "<s>", ..}; -1 if it is null.
absl::StatusOr<int64_t> SpecialId(const JsonNode& node,
                                  const Vocabulary& vocabulary) {
  if (node.IsNull()) return -1;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string token,
      (node.IsString() ? node : node.Member("content")).String());
  const int64_t id = vocabulary.IdOf(token);
  if (id >= 0) return id;
  return node.Invalid(
      absl::StrCat("\"", token, "\" isn't a token of tokenizer.json"));
}

// A text, or several named ones, of which "default" is used.
absl::StatusOr<std::string> ChatTemplate(const JsonNode& node) {
  if (node.IsNull()) return "";
  if (node.IsString()) return node.String();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, node.Items());
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string name,
                             item.Member("name").String());
    if (name == "default") return item.Member("template").String();
  }
  return node.Invalid("has no template named \"default\"");
}

// Makes `ids` begin (`front`) or end with `id` as `add` says.
absl::Status SetEnd(const JsonNode& add, int64_t id, bool front,
                    std::vector<int64_t>* ids) {
  CAPSTAN_ASSIGN_OR_RETURN(const bool wanted, add.Bool(false));
  if (add.IsNull() || id < 0) return absl::OkStatus();
  const bool there =
      !ids->empty() && (front ? ids->front() : ids->back()) == id;
  if (wanted == there) return absl::OkStatus();
  const auto place = front ? ids->begin() : ids->end();
  if (wanted) {
    ids->insert(place, id);
  } else {
    ids->erase(front ? place : place - 1);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerConfig> MakeTokenizerConfig(
    const JsonNode& node, const Vocabulary& vocabulary, Ends* ends) {
  TokenizerConfig config;
  Tokenizer::SpecialIds& ids = config.special_ids;
  CAPSTAN_ASSIGN_OR_RETURN(ids.bos,
                           SpecialId(node.Member("bos_token"), vocabulary));
  CAPSTAN_ASSIGN_OR_RETURN(ids.eos,
                           SpecialId(node.Member("eos_token"), vocabulary));
  CAPSTAN_ASSIGN_OR_RETURN(ids.pad,
                           SpecialId(node.Member("pad_token"), vocabulary));
  CAPSTAN_ASSIGN_OR_RETURN(config.chat_template,
                           ChatTemplate(node.Member("chat_template")));
  CAPSTAN_RETURN_IF_ERROR(SetEnd(node.Member("add_bos_token"), ids.bos,
                                 /*front=*/true, &ends->before));
  CAPSTAN_RETURN_IF_ERROR(SetEnd(node.Member("add_eos_token"), ids.eos,
                                 /*front=*/false, &ends->behind));
  return config;
}

}  // namespace capstan::tokenizer
