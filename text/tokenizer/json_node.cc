// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/json_node.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan::tokenizer {

JsonNode::JsonNode(simdjson::dom::element element, std::string place)
    : place_(std::move(place)) {
  if (!element.is_null()) element_ = element;
}

bool JsonNode::IsString() const {
  return element_.has_value() && element_->is_string();
}

JsonNode JsonNode::Member(absl::string_view name) const {
  std::string place = PlaceOf(name);
  simdjson::dom::object object;
  simdjson::dom::element member;
  if (element_.has_value() && element_->get(object) == simdjson::SUCCESS &&
      object.at_key({name.data(), name.size()}).get(member) ==
          simdjson::SUCCESS) {
    return JsonNode(member, std::move(place));
  }
  return JsonNode(std::move(place));
}

absl::StatusOr<std::vector<std::pair<std::string, JsonNode>>>
JsonNode::Members() const {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::object object, Object());
  std::vector<std::pair<std::string, JsonNode>> members;
  for (const simdjson::dom::key_value_pair member : object) {
    const std::string name(member.key);
    members.emplace_back(name, JsonNode(member.value, PlaceOf(name)));
  }
  return members;
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Items() const {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::array array, Array());
  std::vector<JsonNode> items;
  for (const simdjson::dom::element item : array) {
    items.emplace_back(item, absl::StrCat(place_, "[", items.size(), "]"));
  }
  return items;
}

absl::StatusOr<std::string> JsonNode::String() const {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string_view text,
                           Get<std::string_view>("must be a string"));
  return std::string(text);
}

absl::StatusOr<bool> JsonNode::Bool(bool if_null) const {
  if (IsNull()) return if_null;
  return Get<bool>("must be true or false");
}

absl::Status JsonNode::CheckMembers(
    std::initializer_list<absl::string_view> known) const {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::object object, Object());
  for (const simdjson::dom::key_value_pair member : object) {
    const absl::string_view name = ToView(member.key);
    if (std::find(known.begin(), known.end(), name) == known.end() &&
        !member.value.is_null()) {
      return Member(name).Unsupported("is a field that isn't supported");
    }
  }
  return absl::OkStatus();
}

absl::Status ForEachStep(
    const JsonNode& node, const char* list,
    const std::function<absl::Status(const JsonNode&, const std::string&)>& add,
    int depth) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type != "Sequence") return add(node, type);
  if (depth > 8) return node.Unsupported("sequences are nested too deeply");
  CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", list}));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, node.Items(list));
  for (const JsonNode& item : items) {
    CAPSTAN_RETURN_IF_ERROR(ForEachStep(item, list, add, depth + 1));
  }
  return absl::OkStatus();
}

}  // namespace capstan::tokenizer
