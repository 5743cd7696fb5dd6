// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_fields.h"

#include <simdjson.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace capstan::chat {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

// Shown in docs/chat_data.md: a model trained with this text must be prompted
// with it.
constexpr char kToolsHead[] =
    "Tools that you may call, each by a JSON object with its \"name\" and "
    "\"arguments\":\n";

// The role in templates for ShareGPT's "from"; "" if unknown.
absl::string_view ShareGptRole(absl::string_view from) {
  if (from == "human" || from == "user") return "user";
  // The model writes a call; its result is shown to the model.
  if (from == "gpt" || from == "assistant" || from == "function_call") {
    return "assistant";
  }
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

// An entry of "tool_calls" as {"name": .., "arguments": ..}.
absl::StatusOr<std::string> CallText(const element& value) {
  const absl::Status wrong =
      Bad("has \"tool_calls\" that aren't objects with a function's name and "
          "arguments");
  object call;
  element name;
  if (value.get(call) != simdjson::SUCCESS) return wrong;
  // Some files have the call itself.
  if (Has(call, "function") &&
      call.at_key("function").get(call) != simdjson::SUCCESS) {
    return wrong;
  }
  if (call.at_key("name").get(name) != simdjson::SUCCESS || !name.is_string()) {
    return wrong;
  }
  std::string arguments;
  element given;
  if (Find(call, "arguments", &given)) {
    // OpenAI stores JSON as text, transformers the JSON itself.
    std::string_view text;
    if (given.get(text) == simdjson::SUCCESS) {
      arguments = std::string(text);
    } else if (given.is_object()) {
      arguments = simdjson::minify(given);
    } else {
      return wrong;
    }
  }
  if (arguments.empty()) arguments = "{}";
  return absl::StrCat("{\"name\": ", simdjson::minify(name),
                      ", \"arguments\": ", arguments, "}");
}

// The assistant's text for calling tools, "" if it calls none: a call's JSON
// object, or a list of them.
absl::StatusOr<std::string> CallsText(const object& message) {
  element value;
  array list;
  if (!Find(message, "tool_calls", &value)) return "";
  if (value.get(list) != simdjson::SUCCESS) {
    return WrongType("tool_calls", value, "a list");
  }
  std::vector<std::string> calls;
  for (const element call : list) {
    CAPSTAN_ASSIGN_OR_RETURN(calls.emplace_back(), CallText(call));
  }
  std::string text = absl::StrJoin(calls, ", ");
  return calls.size() > 1 ? absl::StrCat("[", text, "]") : text;
}

// A content is a text or a list of text parts, followed by the message's
// "tool_calls" as JSON. *text may view *own.
absl::Status Content(const object& message, const char* key, std::string* own,
                     absl::string_view* text) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string calls, CallsText(message));
  array parts;
  own->clear();
  if (message.at_key(key).get(parts) == simdjson::SUCCESS) {
    CAPSTAN_RETURN_IF_ERROR(PartsText(parts, key, own));
    *text = *own;
  } else if (calls.empty()) {
    return Text(message, key, text);
  } else {
    CAPSTAN_RETURN_IF_ERROR(OptionalText(message, key, text));
  }
  if (!calls.empty()) {
    *own = absl::StrCat(*text, text->empty() ? "" : "\n", calls);
    *text = *own;
  }
  return absl::OkStatus();
}

// The system's turn: `system` and the text about tools.
std::string SystemText(absl::string_view system, const std::string& tools) {
  return absl::StrCat(system, system.empty() || tools.empty() ? "" : "\n\n",
                      tools);
}

absl::Status Turn(const element& value, const TurnKeys& keys, std::string* own,
                  absl::string_view* role, absl::string_view* content) {
  object message;
  if (value.get(message) != simdjson::SUCCESS) {
    return Bad("is ", TypeText(value), ", not an object");
  }
  CAPSTAN_RETURN_IF_ERROR(Role(message, keys, role));
  return Content(message, keys.content, own, content);
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

absl::StatusOr<std::string> ToolsText(const object& from) {
  element value;
  object none;
  if (!Find(from, "tools", &value) ||
      (value.get(none) == simdjson::SUCCESS && none.size() == 0)) {
    return "";
  }
  std::string_view text;
  std::string tools;
  if (value.get(text) == simdjson::SUCCESS) {
    tools = std::string(absl::StripAsciiWhitespace(View(text)));
  } else if (value.is_array()) {
    tools = simdjson::minify(value);
  } else {
    return WrongType("tools", value, "a list or its text");
  }
  if (tools.empty() || tools == "[]") return "";
  return absl::StrCat(kToolsHead, tools);
}

absl::Status AddTurns(const object& from, const char* key,
                      const TurnKeys& usual, const std::string& tools,
                      Row* row) {
  element value;
  array list;
  if (from.at_key(key).get(value) != simdjson::SUCCESS) return Missing(key);
  if (value.get(list) != simdjson::SUCCESS) {
    return WrongType(key, value, "a list");
  }
  if (list.size() == 0) return Bad("\"", key, "\" is empty");
  const TurnKeys keys = KeysOf(list, usual);
  std::string own;
  size_t number = 0;
  for (const element message : list) {
    ++number;
    absl::string_view role;
    absl::string_view content;
    const absl::Status status = Turn(message, keys, &own, &role, &content);
    if (!status.ok()) {
      return Bad("message ", number, " of \"", key, "\" ", status.message());
    }
    if (number == 1 && !tools.empty()) {
      const bool system = role == "system";
      row->Add("system", SystemText(system ? content : "", tools));
      if (system) continue;
    }
    row->Add(role, content);
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

absl::Status AddSystem(const object& from, const std::string& tools, Row* row) {
  absl::string_view system;
  CAPSTAN_RETURN_IF_ERROR(OptionalText(from, "system", &system));
  if (!system.empty()) row->Add("system", SystemText(system, tools));
  return absl::OkStatus();
}

}  // namespace capstan::chat
