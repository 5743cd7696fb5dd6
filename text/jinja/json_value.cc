// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json_numbers.h"
#include "text/jinja/value.h"

namespace capstan::jinja {
namespace {

// Objects of up to this many keys are searched one by one.
constexpr size_t kFewKeys = 16;

// As Python, of a key that comes twice the last value at the first place.
Dict WithoutRepeats(Dict dict) {
  if (dict.items.size() <= kFewKeys) {
    Dict unique;
    for (auto& [key, value] : dict.items) {
      unique.Set(std::move(key), std::move(value));
    }
    return unique;
  }
  std::unordered_map<std::string, size_t> places;
  Dict unique;
  for (auto& [key, value] : dict.items) {
    const auto [place, is_new] =
        places.emplace(key.string(), unique.items.size());
    if (is_new) {
      unique.items.emplace_back(std::move(key), std::move(value));
    } else {
      unique.items[place->second].second = std::move(value);
    }
  }
  return unique;
}

// Builds a Value; nlohmann's own tree would round large integers.
class ValueSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(none_); }
  bool boolean(bool v) override { return Add(v); }
  bool number_integer(number_integer_t v) override { return Add(v); }
  bool number_unsigned(number_unsigned_t v) override {
    return Add(IntegerOfText(absl::StrCat(v)));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    return Add(text.find_first_of(".eE") == std::string::npos
                   ? IntegerOfText(text)
                   : Value(v));
  }
  bool string(string_t& v) override { return Add(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(/*object=*/true); }
  bool start_array(std::size_t) override { return Open(/*object=*/false); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& v) override {
    open_.back().key = std::move(v);
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

  Value root;

 private:
  struct Level {
    bool object;
    std::string key;
    Dict dict;
    std::vector<Value> items;
  };

  bool Add(Value value) {
    if (open_.empty()) {
      root = std::move(value);
    } else if (Level& level = open_.back(); level.object) {
      level.dict.items.emplace_back(std::move(level.key), std::move(value));
    } else {
      level.items.push_back(std::move(value));
    }
    return true;
  }
  bool Open(bool object) {
    if (open_.size() >= kMostJsonDepth) {
      throw LimitError("values nest too deeply");
    }
    open_.push_back({object, {}, {}, {}});
    return true;
  }
  bool Close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    return Add(level.object ? Value::Of(WithoutRepeats(std::move(level.dict)))
                            : Value::List(std::move(level.items)));
  }

  // Copied, as g++ 12 takes a moved temporary for uninitialised.
  const Value none_;
  std::vector<Level> open_;
};

}  // namespace

Value Value::FromJson(absl::string_view json) {
  ValueSax sax;
  if (nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) {
    return std::move(sax.root);
  }
  // Numbers beyond double are the usual reason.
  const absl::optional<std::string> fitting = WithNumbersThatFit(json);
  ValueSax again;
  if (fitting.has_value() && nlohmann::json::sax_parse(*fitting, &again)) {
    return std::move(again.root);
  }
  throw Error("this isn't JSON");
}

}  // namespace capstan::jinja
