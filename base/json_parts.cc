// SPDX-License-Identifier: Apache-2.0
#include "base/json_parts.h"

#include <cstddef>

#include "absl/strings/ascii.h"

namespace capstan {
namespace {

// Goes through the values of an object or a list.
class Parts {
 public:
  explicit Parts(absl::string_view json) : json_(json) {
    SkipSpace();
    Pass();  // the bracket
  }
  // Whether there is another key or item.
  bool Next() {
    SkipSpace();
    if (Now() == ',') Pass();
    SkipSpace();
    return at_ < json_.size() && Now() != '}' && Now() != ']';
  }
  // The key in its quotes, and what stands behind it.
  absl::string_view Key() {
    const absl::string_view key = Value();
    SkipSpace();
    Pass();  // the colon
    SkipSpace();
    return key;
  }
  absl::string_view Value() {
    const size_t begin = at_;
    int depth = 0;
    while (at_ < json_.size()) {
      const char c = Now();
      if (c == '"') {
        SkipString();
      } else if (c == '[' || c == '{') {
        ++depth;
        Pass();
      } else if (c == ']' || c == '}') {
        if (depth == 0) break;
        --depth;
        Pass();
      } else if (depth == 0 &&
                 (c == ',' || c == ':' || absl::ascii_isspace(c))) {
        break;
      } else {
        Pass();
      }
      if (depth == 0 && (c == '"' || c == ']' || c == '}')) break;
    }
    return json_.substr(begin, at_ - begin);
  }

 private:
  char Now() const { return at_ < json_.size() ? json_[at_] : '\0'; }
  void Pass() { at_ += at_ < json_.size() ? 1 : 0; }
  void SkipSpace() {
    while (at_ < json_.size() && absl::ascii_isspace(Now())) ++at_;
  }
  void SkipString() {
    for (Pass(); at_ < json_.size() && Now() != '"'; Pass()) {
      if (Now() == '\\') Pass();
    }
    Pass();
  }

  const absl::string_view json_;
  size_t at_ = 0;
};

}  // namespace

absl::string_view JsonMember(absl::string_view object, absl::string_view key) {
  for (Parts parts(object); parts.Next();) {
    const absl::string_view found = parts.Key();
    const absl::string_view value = parts.Value();
    if (found.size() == key.size() + 2 && found.substr(1, key.size()) == key) {
      return value;
    }
    if (value.empty()) break;
  }
  return "";
}

std::vector<absl::string_view> JsonItems(absl::string_view list) {
  std::vector<absl::string_view> items;
  for (Parts parts(list); parts.Next();) {
    items.push_back(parts.Value());
    if (items.back().empty()) break;
  }
  return items;
}

}  // namespace capstan
