// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/documents.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan::evaluate {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::vector<Document>> ListDocuments(const std::string& path,
                                                    const Json& json) {
  const Json* list = &json;
  if (json.is_object() && json.contains("data")) list = &json["data"];
  if (!list->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": must be a list of objects, or {\"data\": [..]}"));
  }
  std::vector<Document> documents;
  for (const Json& row : *list) {
    documents.push_back(
        {row, absl::StrCat(path, ", element ", documents.size())});
  }
  return documents;
}

absl::StatusOr<std::vector<Document>> LineDocuments(const std::string& path,
                                                    absl::string_view text) {
  std::vector<Document> documents;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    documents.push_back(
        {ParseJson<Json>(line), absl::StrCat(path, ":", number)});
  }
  return documents;
}

}  // namespace

absl::StatusOr<std::vector<Document>> ReadDocuments(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::vector<Document> documents;
  const Json whole =
      absl::EndsWith(path, ".jsonl") ? Json() : ParseJson<Json>(text);
  if (whole.is_array() || (whole.is_object() && whole.contains("data"))) {
    CAPSTAN_ASSIGN_OR_RETURN(documents, ListDocuments(path, whole));
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(documents, LineDocuments(path, text));
  }
  for (const Document& document : documents) {
    if (!document.row.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(document.place, ": isn't a JSON object"));
    }
  }
  if (documents.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no rows"));
  }
  return documents;
}

absl::StatusOr<std::vector<Document>> Processed(
    const std::vector<Document>& documents, const RowFunction& process_docs) {
  std::vector<Document> processed;
  for (const Document& document : documents) {
    absl::StatusOr<Json> made = process_docs(document.row);
    if (!made.ok()) {
      return Annotate(Annotate(made.status(), "process_docs"), document.place);
    }
    if (made->is_null()) continue;
    if (made->is_array()) {
      for (Json& row : *made) {
        processed.push_back({std::move(row), document.place});
      }
      continue;
    }
    processed.push_back(document);
    processed.back().row.update(*made);
  }
  return processed;
}

}  // namespace capstan::evaluate
