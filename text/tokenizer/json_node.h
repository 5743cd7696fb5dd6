// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_JSON_NODE_H_
#define CAPSTAN_TEXT_TOKENIZER_JSON_NODE_H_

#include <simdjson.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan::tokenizer {

// A JSON value with its path ("pre_tokenizer.pretokenizers[0].pattern") for
// error messages. A view of the simdjson document, which must outlive it.
class JsonNode {
 public:
  JsonNode(simdjson::dom::element element, std::string place);

  const std::string& place() const { return place_; }
  // Null or absent.
  bool IsNull() const { return !element_.has_value(); }
  bool IsString() const;

  // A member of an object; null if absent or if this is null.
  JsonNode Member(absl::string_view name) const;
  // The members of an object, by name in their order.
  absl::StatusOr<std::vector<std::pair<std::string, JsonNode>>> Members() const;
  // The elements of an array.
  absl::StatusOr<std::vector<JsonNode>> Items() const;
  absl::StatusOr<simdjson::dom::object> Object() const {
    return Get<simdjson::dom::object>("must be an object");
  }
  absl::StatusOr<simdjson::dom::array> Array() const {
    return Get<simdjson::dom::array>("must be an array");
  }
  absl::StatusOr<int64_t> Int() const {
    return Get<int64_t>("must be an integer");
  }
  absl::StatusOr<double> Number() const {
    return Get<double>("must be a number");
  }
  absl::StatusOr<std::string> String() const;
  // `if_null` if null.
  absl::StatusOr<bool> Bool(bool if_null) const;

  // The same of a member.
  absl::StatusOr<std::vector<JsonNode>> Items(absl::string_view name) const {
    return Member(name).Items();
  }
  absl::StatusOr<int64_t> Int(absl::string_view name) const {
    return Member(name).Int();
  }
  absl::StatusOr<std::string> String(absl::string_view name) const {
    return Member(name).String();
  }
  absl::StatusOr<bool> Bool(absl::string_view name, bool if_null) const {
    return Member(name).Bool(if_null);
  }

  // UNIMPLEMENTED for members of this object outside `known`: settings that we
  // don't understand must not be ignored.
  absl::Status CheckMembers(
      std::initializer_list<absl::string_view> known) const;

  // INVALID_ARGUMENT or UNIMPLEMENTED: "path: problem".
  template <typename... Parts>
  absl::Status Invalid(const Parts&... problem) const {
    return absl::InvalidArgumentError(Placed(absl::StrCat(problem...)));
  }
  template <typename... Parts>
  absl::Status Unsupported(const Parts&... problem) const {
    return absl::UnimplementedError(Placed(absl::StrCat(problem...)));
  }

 private:
  explicit JsonNode(std::string place) : place_(std::move(place)) {}

  std::string PlaceOf(absl::string_view member) const {
    return place_.empty() ? std::string(member)
                          : absl::StrCat(place_, ".", member);
  }
  std::string Placed(absl::string_view problem) const {
    return absl::StrCat(place_.empty() ? "the file" : place_, ": ", problem);
  }

  template <typename T>
  absl::StatusOr<T> Get(absl::string_view problem) const {
    T value{};
    if (IsNull() || element_->get(value) != simdjson::SUCCESS) {
      return Invalid(problem);
    }
    return value;
  }

  absl::optional<simdjson::dom::element> element_;
  std::string place_;
};

// Calls add(step, its "type") for `node` or, if that is {"type": "Sequence",
// `list`: [..]}, for each of its steps. Too deep a nesting is an error.
absl::Status ForEachStep(
    const JsonNode& node, const char* list,
    const std::function<absl::Status(const JsonNode&, const std::string&)>& add,
    int depth = 0);

inline absl::string_view ToView(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_JSON_NODE_H_
