// SPDX-License-Identifier: Apache-2.0
//
// Values from JSON, and as JSON.
#include <algorithm>
#include <cmath>
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

// As Python, of a key that comes twice the last value at the first place.
Dict WithoutRepeats(Dict dict) {
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

// Writes a value as Python's json module does.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonFormat& format) : format_(format) {}

  void Write(const Value& value, int depth) {
    if (value.is_string()) {
      out += nlohmann::json(value.string())
                 .dump(-1, ' ', format_.ensure_ascii,
                       nlohmann::json::error_handler_t::replace);
    } else if (value.is_none()) {
      out += "null";
    } else if (value.is_bool()) {
      out += value.integer() != 0 ? "true" : "false";
    } else if (value.is_float() && !std::isfinite(value.number())) {
      out += std::isnan(value.number()) ? "NaN"
             : value.number() > 0       ? "Infinity"
                                        : "-Infinity";
    } else if (value.is_number() || value.is_big()) {
      out += ToText(value);
    } else if (const Sequence* const sequence = value.sequence()) {
      Items("[", "]", sequence->items.size(), depth,
            [&](size_t i) { Write(sequence->items[i], depth + 1); });
    } else if (const Dict* const dict = value.dict()) {
      WriteDict(*dict, depth);
    } else {
      throw Error(absl::StrCat("tojson: an object of type ", value.TypeName(),
                               " is not JSON"));
    }
  }

  std::string out;

 private:
  void WriteDict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (format_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) {
                         return Less(a->first, b->first);
                       });
    }
    Items("{", "}", items.size(), depth, [&](size_t i) {
      const Value& key = items[i]->first;
      if (!key.is_string() && !key.is_number() && !key.is_big() &&
          !key.is_none()) {
        throw Error("tojson: a key is neither text nor a number");
      }
      const char* const quote = key.is_string() ? "" : "\"";
      out += quote;
      Write(key, depth + 1);
      out += quote;
      out += format_.key_separator;
      Write(items[i]->second, depth + 1);
    });
  }

  template <typename WriteItem>
  void Items(const char* open, const char* close, size_t count, int depth,
             const WriteItem& write) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += format_.item_separator;
      NewLine(depth + 1);
      write(i);
    }
    if (count > 0) NewLine(depth);
    out += close;
  }
  void NewLine(int depth) {
    if (format_.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(format_.indent) * depth, ' ');
  }

  const JsonFormat& format_;
};

}  // namespace

std::string ToJson(const Value& value, const JsonFormat& format) {
  JsonWriter writer(format);
  writer.Write(value, 0);
  return std::move(writer.out);
}

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
