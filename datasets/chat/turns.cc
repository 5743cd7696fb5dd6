// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/turns.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "datasets/chat/row.h"

namespace capstan::chat {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
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
    return Bad(
        absl::StrCat("is from \"", *role,
                     "\"; known are human, gpt, system, function_call and "
                     "observation"));
  }
  *role = known;
  return absl::OkStatus();
}

// The concatenated texts of content parts.
absl::Status PartsText(const array& parts, const char* key, std::string* out) {
  size_t number = 0;
  for (const element value : parts) {
    ++number;
    const auto annotate = [&](absl::string_view problem) {
      return Bad(
          absl::StrCat("has \"", key, "\" whose part ", number, " ", problem));
    };
    object part;
    if (value.get(part) != simdjson::SUCCESS) {
      return annotate(absl::StrCat("is ", TypeText(value), ", not an object"));
    }
    absl::string_view type;
    absl::string_view text;
    absl::Status status = Text(part, "type", &type);
    if (status.ok() && type != "text") {
      return annotate(absl::StrCat("has the type \"", type,
                                   "\": only \"text\" can be trained on"));
    }
    if (status.ok()) status = Text(part, "text", &text);
    if (!status.ok()) return annotate(status.message());
    absl::StrAppend(out, text);
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
  if (call.at_key("arguments").get(given) == simdjson::SUCCESS &&
      !given.is_null()) {
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
absl::Status CallsText(const object& message, std::string* out) {
  element value;
  array list;
  if (message.at_key("tool_calls").get(value) != simdjson::SUCCESS ||
      value.is_null()) {
    return absl::OkStatus();
  }
  if (value.get(list) != simdjson::SUCCESS) {
    return Bad(
        absl::StrCat("\"tool_calls\" is ", TypeText(value), ", not a list"));
  }
  std::vector<std::string> calls;
  for (const element call : list) {
    CAPSTAN_ASSIGN_OR_RETURN(calls.emplace_back(), CallText(call));
  }
  *out = absl::StrJoin(calls, ", ");
  if (calls.size() > 1) *out = absl::StrCat("[", *out, "]");
  return absl::OkStatus();
}

// *text may view *own.
absl::Status Content(const object& message, const char* key, std::string* own,
                     absl::string_view* text) {
  std::string calls;
  CAPSTAN_RETURN_IF_ERROR(CallsText(message, &calls));
  element value;
  array parts;
  const bool there = message.at_key(key).get(value) == simdjson::SUCCESS;
  own->clear();
  if (there && value.get(parts) == simdjson::SUCCESS) {
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

}  // namespace

absl::Status ToolsText(const object& from, std::string* out) {
  out->clear();
  element value;
  if (from.at_key("tools").get(value) != simdjson::SUCCESS || value.is_null()) {
    return absl::OkStatus();
  }
  array list;
  object none;
  if (value.get(none) == simdjson::SUCCESS && none.size() == 0) {
    return absl::OkStatus();
  }
  std::string_view text;
  std::string tools;
  if (value.get(text) == simdjson::SUCCESS) {
    tools = std::string(absl::StripAsciiWhitespace(
        absl::string_view(text.data(), text.size())));
  } else if (value.get(list) == simdjson::SUCCESS) {
    tools = simdjson::minify(value);
  } else {
    return Bad(absl::StrCat("\"tools\" is ", TypeText(value),
                            ", not a list or its text"));
  }
  if (!tools.empty() && tools != "[]") *out = absl::StrCat(kToolsHead, tools);
  return absl::OkStatus();
}

std::string SystemText(absl::string_view system, const std::string& tools) {
  return absl::StrCat(system, system.empty() || tools.empty() ? "" : "\n\n",
                      tools);
}

absl::Status AddTurns(const object& from, const char* key, const TurnKeys& keys,
                      const std::string& tools, Row* row) {
  array list;
  CAPSTAN_RETURN_IF_ERROR(List(from, key, &list));
  std::string own;
  size_t number = 0;
  for (const element value : list) {
    ++number;
    const auto annotate = [&](absl::string_view problem) {
      return Bad(
          absl::StrCat("message ", number, " of \"", key, "\" ", problem));
    };
    object message;
    if (value.get(message) != simdjson::SUCCESS) {
      return annotate(absl::StrCat("is ", TypeText(value), ", not an object"));
    }
    absl::string_view role;
    absl::string_view content;
    absl::Status status = Role(message, keys, &role);
    if (status.ok()) status = Content(message, keys.content, &own, &content);
    if (!status.ok()) return annotate(status.message());
    if (number == 1 && !tools.empty()) {
      const bool system = role == "system";
      row->Add("system", SystemText(system ? content : "", tools));
      if (system) continue;
    }
    row->Add(role, content);
  }
  return absl::OkStatus();
}

}  // namespace capstan::chat
