// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_fields.h"

#include <simdjson.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/json_parts.h"
#include "base/status.h"

namespace capstan::chat {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

// A turn of ShareGPT's whose text is the JSON of a call (chat_template.h).
constexpr char kFunctionCall[] = "function_call";

// The role in templates for ShareGPT's "from"; "" if unknown.
absl::string_view ShareGptRole(absl::string_view from) {
  if (from == "human" || from == "user") return "user";
  if (from == "gpt" || from == "assistant") return "assistant";
  // The model writes a call; its result is shown to the model.
  if (from == kFunctionCall) return kFunctionCall;
  if (from == "system") return "system";
  return from == "observation" ? "tool" : "";
}

absl::Status Role(const object& message, const TurnKeys& keys,
                  absl::string_view* role) {
  CAPSTAN_RETURN_IF_ERROR(Text(message, keys.role, role));
  if (!keys.sharegpt) return absl::OkStatus();
  const absl::string_view known = ShareGptRole(*role);
  if (known.empty()) {
    return Bad("is from \"", *role,
               "\"; known are human, gpt, system, function_call and "
               "observation");
  }
  *role = known;
  return absl::OkStatus();
}

// Appends the text of one content part.
absl::Status AppendPart(const element& value, std::string* out) {
  object part;
  if (value.get(part) != simdjson::SUCCESS) {
    return Bad("is ", TypeText(value), ", not an object");
  }
  absl::string_view type;
  absl::string_view text;
  CAPSTAN_RETURN_IF_ERROR(Text(part, "type", &type));
  if (type != "text") {
    return Bad("has the type \"", type, "\": only \"text\" can be trained on");
  }
  CAPSTAN_RETURN_IF_ERROR(Text(part, "text", &text));
  absl::StrAppend(out, text);
  return absl::OkStatus();
}

// The concatenated texts of content parts.
absl::Status PartsText(const array& parts, const char* key, std::string* out) {
  size_t number = 0;
  for (const element part : parts) {
    ++number;
    const absl::Status status = AppendPart(part, out);
    if (status.ok()) continue;
    return Bad("has \"", key, "\" whose part ", number, " ", status.message());
  }
  return absl::OkStatus();
}

// A content is a text or a list of text parts; it may be missing if the message
// has something else to say. *text may view *own.
absl::Status Content(const object& message, const char* key, bool more,
                     std::string* own, absl::string_view* text) {
  array parts;
  own->clear();
  if (message.at_key(key).get(parts) == simdjson::SUCCESS) {
    CAPSTAN_RETURN_IF_ERROR(PartsText(parts, key, own));
    *text = *own;
    return absl::OkStatus();
  }
  return more ? OptionalText(message, key, text) : Text(message, key, text);
}

bool HasItems(const object& message, const char* key) {
  element value;
  array list;
  return Find(message, key, &value) &&
         (value.get(list) != simdjson::SUCCESS || list.size() > 0);
}

struct Turn {
  absl::string_view role;
  absl::string_view content;
  bool plain = true;  // it has nothing but role and content
};

absl::Status ReadTurn(const element& value, const TurnKeys& keys,
                      std::string* own, Turn* turn) {
  object message;
  if (value.get(message) != simdjson::SUCCESS) {
    return Bad("is ", TypeText(value), ", not an object");
  }
  CAPSTAN_RETURN_IF_ERROR(Role(message, keys, &turn->role));
  turn->plain = true;
  bool more = false;  // than content
  if (!keys.sharegpt) {
    for (const auto& field : message) {
      turn->plain &= field.key == keys.role || field.key == keys.content ||
                     field.value.is_null();
    }
    element calls;
    if (Find(message, "tool_calls", &calls) && !calls.is_array()) {
      return WrongType("tool_calls", calls, "a list");
    }
    more = HasItems(message, "tool_calls");
    for (const char* const key : {"reasoning_content", "thinking"}) {
      more |= HasItems(message, key);
    }
  }
  return Content(message, keys.content, more, own, &turn->content);
}

// `json` without white space.
std::string Minified(absl::string_view json) {
  std::string out(json.size() + simdjson::SIMDJSON_PADDING, '\0');
  size_t size = 0;
  if (simdjson::minify(json.data(), json.size(), out.data(), size) !=
      simdjson::SUCCESS) {
    return std::string(json);
  }
  out.resize(size);
  return out;
}

// The value of `key` as it is written; as the parser has it if the key is.
std::string MemberJson(const Row& row, const char* key, const element& value) {
  const absl::string_view json = JsonMember(row.source, key);
  return json.empty() ? std::string(simdjson::minify(value)) : Minified(json);
}

// Either pair of keys is found under either name of the list.
TurnKeys KeysOf(const array& list, const TurnKeys& usual) {
  object first;
  if (list.size() == 0 || list.at(0).get(first) != simdjson::SUCCESS ||
      Has(first, usual.role)) {
    return usual;
  }
  const TurnKeys& other = usual.sharegpt ? kMessageKeys : kShareGptKeys;
  return Has(first, other.role) ? other : usual;
}

}  // namespace

const char* TypeText(const element& value) {
  switch (value.type()) {
    case element_type::ARRAY:
      return "a list";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING:
      return "a text";
    case element_type::BOOL:
      return "true or false";
    case element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

absl::Status Missing(const char* key) { return Bad("has no \"", key, "\""); }

absl::Status WrongType(const char* key, const element& value,
                       const char* wanted) {
  return Bad("\"", key, "\" is ", TypeText(value), ", not ", wanted);
}

bool Has(const object& row, const char* key) {
  return row.at_key(key).error() == simdjson::SUCCESS;
}

bool Find(const object& row, const char* key, element* value) {
  return row.at_key(key).get(*value) == simdjson::SUCCESS && !value->is_null();
}

absl::Status Text(const object& row, const char* key, absl::string_view* out) {
  element value;
  if (row.at_key(key).get(value) != simdjson::SUCCESS) return Missing(key);
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return WrongType(key, value, "a text");
  }
  *out = View(text);
  return absl::OkStatus();
}

absl::Status CopyText(const object& row, const char* key, std::string* out) {
  absl::string_view text;
  CAPSTAN_RETURN_IF_ERROR(Text(row, key, &text));
  out->assign(text.data(), text.size());
  return absl::OkStatus();
}

absl::Status OptionalText(const object& row, const char* key,
                          absl::string_view* out) {
  *out = "";
  element value;
  return Find(row, key, &value) ? Text(row, key, out) : absl::OkStatus();
}

absl::Status AddContext(const object& from, Row* row) {
  element value;
  object keys;
  const auto is_empty = [&] {
    return value.get(keys) == simdjson::SUCCESS && keys.size() == 0;
  };
  if (Find(from, "tools", &value) && !is_empty()) {
    std::string_view text;
    if (value.get(text) == simdjson::SUCCESS) {
      row->tools = std::string(absl::StripAsciiWhitespace(View(text)));
    } else if (value.is_array()) {
      row->tools = MemberJson(*row, "tools", value);
    } else {
      return WrongType("tools", value, "a list or its text");
    }
    if (row->tools == "[]") row->tools.clear();
  }
  if (Find(from, "documents", &value) && !is_empty()) {
    if (!value.is_array()) return WrongType("documents", value, "a list");
    row->documents = MemberJson(*row, "documents", value);
  }
  if (Find(from, "chat_template_kwargs", &value)) {
    if (!value.is_object()) {
      return WrongType("chat_template_kwargs", value, "an object");
    }
    row->variables = MemberJson(*row, "chat_template_kwargs", value);
  }
  return absl::OkStatus();
}

absl::Status AddTurns(const object& from, const char* key,
                      const TurnKeys& usual, Row* row) {
  element value;
  array list;
  if (from.at_key(key).get(value) != simdjson::SUCCESS) return Missing(key);
  if (value.get(list) != simdjson::SUCCESS) {
    return WrongType(key, value, "a list");
  }
  if (list.size() == 0) return Bad("\"", key, "\" is empty");
  const TurnKeys keys = KeysOf(list, usual);
  std::string own;
  std::vector<absl::string_view> items;  // as they are written
  size_t number = 0;
  for (const element message : list) {
    ++number;
    Turn turn;
    const absl::Status status = ReadTurn(message, keys, &own, &turn);
    if (!status.ok()) {
      return Bad("message ", number, " of \"", key, "\" ", status.message());
    }
    std::string json;
    if (turn.role == kFunctionCall && keys.sharegpt) {
      json = MessageJson(kFunctionCall, turn.content);
      turn.role = "assistant";
    } else if (!turn.plain) {
      if (items.empty()) items = JsonItems(JsonMember(row->source, key));
      json = items.size() == list.size() ? std::string(items[number - 1])
                                         : simdjson::minify(message);
    }
    row->Add(turn.role, turn.content, json);
  }
  return absl::OkStatus();
}

absl::Status AddText(const object& from, const char* key, const char* role,
                     Row* row) {
  absl::string_view text;
  CAPSTAN_RETURN_IF_ERROR(Text(from, key, &text));
  row->Add(role, text);
  return absl::OkStatus();
}

absl::Status AddSystem(const object& from, Row* row) {
  absl::string_view system;
  CAPSTAN_RETURN_IF_ERROR(OptionalText(from, "system", &system));
  if (!system.empty()) row->Add("system", system);
  return absl::OkStatus();
}

std::string MessageJson(absl::string_view role, absl::string_view content) {
  const nlohmann::ordered_json message = {{"role", std::string(role)},
                                          {"content", std::string(content)}};
  return message.dump();  // of valid UTF-8, as a row is
}

}  // namespace capstan::chat
