// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/vocabulary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace tokenizer {
namespace {

// What a broken file may make us allocate has an end.
constexpr int64_t kMaxId = (1 << 22) - 1;

absl::Status CheckId(int64_t id, absl::string_view token,
                     const JsonNode& place) {
  if (id >= 0 && id <= kMaxId) return absl::OkStatus();
  return place.Invalid(absl::StrCat("the token \"", token, "\" has the id ", id,
                                    ", ids are from 0 to ", kMaxId));
}

}  // namespace

absl::Status Vocabulary::Load(const JsonNode& vocab,
                              const JsonNode& added_tokens) {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::object object, vocab.Object());
  std::vector<std::pair<absl::string_view, int64_t>> model;
  int64_t greatest = -1;
  for (const simdjson::dom::key_value_pair entry : object) {
    const absl::string_view token = ToView(entry.key);
    int64_t id = 0;
    if (entry.value.get(id) != simdjson::SUCCESS) {
      return vocab.Invalid(
          absl::StrCat("the id of \"", token, "\" must be an integer"));
    }
    CAPSTAN_RETURN_IF_ERROR(CheckId(id, token, vocab));
    greatest = std::max(greatest, id);
    model.emplace_back(token, id);
  }
  std::vector<std::pair<std::string, int64_t>> added;
  std::vector<JsonNode> items;
  if (!added_tokens.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(items, added_tokens.Items());
  }
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(std::string content,
                             item.Member("content").String());
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, item.Member("id").Int());
    CAPSTAN_RETURN_IF_ERROR(CheckId(id, content, item));
    greatest = std::max(greatest, id);
    added.emplace_back(std::move(content), id);
  }
  if (greatest < 0) return vocab.Invalid("there is no token in it");
  tokens_.resize(greatest + 1);
  has_.resize(greatest + 1);
  ids_.reserve(model.size() + added.size());
  for (const auto& [token, id] : model) {
    if (IdOf(token) >= 0) {
      return vocab.Invalid(
          absl::StrCat("the token \"", token, "\" is there twice"));
    }
    CAPSTAN_RETURN_IF_ERROR(Add(token, id, vocab));
  }
  in_model_ = has_;
  for (size_t i = 0; i < added.size(); ++i) {
    const int32_t known = IdOf(added[i].first);
    if (known == added[i].second) continue;
    if (known >= 0) {
      return items[i].Invalid(absl::StrCat("\"", added[i].first, "\" has id ",
                                           added[i].second, " here and ", known,
                                           " elsewhere in the file"));
    }
    CAPSTAN_RETURN_IF_ERROR(Add(added[i].first, added[i].second, items[i]));
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::Add(absl::string_view token, int64_t id,
                             const JsonNode& place) {
  if (has_[id]) {
    return place.Invalid(absl::StrCat("id ", id, " is that of \"", tokens_[id],
                                      "\" and of \"", token, "\""));
  }
  tokens_[id] = std::string(token);
  has_[id] = true;
  ids_[tokens_[id]] = static_cast<int32_t>(id);
  return absl::OkStatus();
}

}  // namespace tokenizer
}  // namespace capstan
