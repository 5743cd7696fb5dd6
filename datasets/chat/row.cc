// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row.h"

#include <simdjson.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugins/sdk/status.h"

namespace capstan {
namespace chat {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

absl::Status Bad(const std::string& problem) {
  return absl::InvalidArgumentError(problem);
}

// "a list", for errors.
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

bool Has(const object& row, const char* key) {
  return row.at_key(key).error() == simdjson::SUCCESS;
}

absl::Status Text(const object& row, const char* key, absl::string_view* out) {
  element value;
  if (row.at_key(key).get(value) != simdjson::SUCCESS) {
    return Bad(absl::StrCat("has no \"", key, "\""));
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return Bad(
        absl::StrCat("\"", key, "\" is ", TypeText(value), ", not a text"));
  }
  *out = absl::string_view(text.data(), text.size());
  return absl::OkStatus();
}

// The same; "" where the row has no such key, or null.
absl::Status OptionalText(const object& row, const char* key,
                          absl::string_view* out) {
  *out = "";
  element value;
  if (row.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) {
    return absl::OkStatus();
  }
  return Text(row, key, out);
}

absl::Status List(const object& row, const char* key, array* out) {
  element value;
  if (row.at_key(key).get(value) != simdjson::SUCCESS) {
    return Bad(absl::StrCat("has no \"", key, "\""));
  }
  if (value.get(*out) != simdjson::SUCCESS) {
    return Bad(
        absl::StrCat("\"", key, "\" is ", TypeText(value), ", not a list"));
  }
  if (out->size() == 0) return Bad(absl::StrCat("\"", key, "\" is empty"));
  return absl::OkStatus();
}

// "from" of ShareGPT's turns, as templates call it; "" if it is none of them.
absl::string_view ShareGptRole(absl::string_view from) {
  if (from == "human" || from == "user") return "user";
  // A call is what the model writes, what comes of it is what it is shown.
  if (from == "gpt" || from == "assistant" || from == "function_call") {
    return "assistant";
  }
  if (from == "system") return "system";
  return from == "observation" ? "tool" : "";
}

absl::Status AddMessages(const object& parent, const char* key,
                         const char* role_key, const char* content_key,
                         bool sharegpt, Row* row) {
  array list;
  CAPSTAN_RETURN_IF_ERROR(List(parent, key, &list));
  size_t number = 0;
  for (const element value : list) {
    ++number;
    const auto annotate = [&](const absl::Status& status) {
      return Bad(absl::StrCat("message ", number, " of \"", key, "\" ",
                              status.message()));
    };
    object message;
    if (value.get(message) != simdjson::SUCCESS) {
      return annotate(
          Bad(absl::StrCat("is ", TypeText(value), ", not an object")));
    }
    absl::string_view role;
    absl::string_view content;
    absl::Status status = Text(message, role_key, &role);
    if (status.ok()) status = Text(message, content_key, &content);
    if (!status.ok()) return annotate(status);
    if (sharegpt) {
      const absl::string_view known = ShareGptRole(role);
      if (known.empty()) {
        return annotate(Bad(
            absl::StrCat("is from \"", role,
                         "\"; known are human, gpt, system, function_call and "
                         "observation")));
      }
      role = known;
    }
    row->Add(role, content);
  }
  return absl::OkStatus();
}

absl::Status AddSystem(const object& from, Row* row) {
  absl::string_view system;
  CAPSTAN_RETURN_IF_ERROR(OptionalText(from, "system", &system));
  if (!system.empty()) row->Add("system", system);
  return absl::OkStatus();
}

absl::Status FillPromptCompletion(const object& from, Row* row) {
  element prompt;
  if (from.at_key("prompt").get(prompt) == simdjson::SUCCESS &&
      prompt.is_array()) {
    CAPSTAN_RETURN_IF_ERROR(
        AddMessages(from, "prompt", "role", "content", false, row));
    row->prompt_messages = row->messages().size();
    return AddMessages(from, "completion", "role", "content", false, row);
  }
  absl::string_view text;
  row->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(Text(from, "prompt", &text));
  row->prompt.assign(text.data(), text.size());
  CAPSTAN_RETURN_IF_ERROR(Text(from, "completion", &text));
  row->completion.assign(text.data(), text.size());
  return absl::OkStatus();
}

absl::Status FillText(const object& from, Row* row) {
  absl::string_view text;
  row->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(Text(from, "text", &text));
  if (text.empty()) return Bad("\"text\" is empty");
  row->completion.assign(text.data(), text.size());
  return absl::OkStatus();
}

absl::Status FillPair(const object& from, const char* user,
                      const char* assistant, Row* row) {
  absl::string_view text;
  CAPSTAN_RETURN_IF_ERROR(Text(from, user, &text));
  row->Add("user", text);
  CAPSTAN_RETURN_IF_ERROR(Text(from, assistant, &text));
  row->Add("assistant", text);
  return absl::OkStatus();
}

absl::Status AddHistory(const object& from, Row* row) {
  element value;
  if (from.at_key("history").get(value) != simdjson::SUCCESS ||
      value.is_null()) {
    return absl::OkStatus();
  }
  const absl::Status wrong =
      Bad("\"history\" is not a list of [question, answer] pairs of texts");
  array history;
  if (value.get(history) != simdjson::SUCCESS) return wrong;
  for (const element entry : history) {
    array pair;
    if (entry.get(pair) != simdjson::SUCCESS || pair.size() != 2) return wrong;
    const char* role = "user";
    for (const element text : pair) {
      std::string_view content;
      if (text.get(content) != simdjson::SUCCESS) return wrong;
      row->Add(role, absl::string_view(content.data(), content.size()));
      role = "assistant";
    }
  }
  return absl::OkStatus();
}

absl::Status FillAlpaca(const object& from, Row* row) {
  CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
  CAPSTAN_RETURN_IF_ERROR(AddHistory(from, row));
  absl::string_view instruction;
  absl::string_view input;
  absl::string_view output;
  CAPSTAN_RETURN_IF_ERROR(Text(from, "instruction", &instruction));
  CAPSTAN_RETURN_IF_ERROR(OptionalText(from, "input", &input));
  CAPSTAN_RETURN_IF_ERROR(Text(from, "output", &output));
  if (input.empty()) {
    row->Add("user", instruction);
  } else {
    row->Add("user", absl::StrCat(instruction, "\n", input));
  }
  row->Add("assistant", output);
  return absl::OkStatus();
}

// By the keys: the first kind, of those that say most, that has what it needs.
Kind KindOf(const object& row) {
  if (Has(row, "messages")) return MESSAGES;
  if (Has(row, "conversations")) return SHAREGPT;
  if (Has(row, "prompt") && Has(row, "completion")) return PROMPT_COMPLETION;
  if (Has(row, "instruction") && Has(row, "output")) return ALPACA;
  if (Has(row, "question") && Has(row, "answer")) return QUESTION_ANSWER;
  if (Has(row, "user") && Has(row, "assistant")) return SYSTEM_USER_ASSISTANT;
  if (Has(row, "text")) return TEXT;
  return AUTO;
}

absl::Status UnknownKeys(const object& row) {
  std::vector<std::string> keys;
  for (const auto& field : row) {
    if (keys.size() == 8) {
      keys.push_back("..");
      break;
    }
    keys.push_back(absl::StrCat(
        "\"", absl::string_view(field.key.data(), field.key.size()), "\""));
  }
  return Bad(absl::StrCat(
      keys.empty() ? "is an object without keys"
                   : absl::StrCat("has the keys ", absl::StrJoin(keys, ", ")),
      "; a row has messages, conversations, prompt and completion, instruction "
      "and output, question and answer, user and assistant, or text"));
}

absl::Status Fill(const object& from, Row* row) {
  switch (row->kind) {
    case MESSAGES:
      return AddMessages(from, "messages", "role", "content", false, row);
    case SHAREGPT:
      CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
      return AddMessages(from, "conversations", "from", "value", true, row);
    case PROMPT_COMPLETION:
      return FillPromptCompletion(from, row);
    case ALPACA:
      return FillAlpaca(from, row);
    case QUESTION_ANSWER:
      return FillPair(from, "question", "answer", row);
    case SYSTEM_USER_ASSISTANT:
      CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
      return FillPair(from, "user", "assistant", row);
    case TEXT:
      return FillText(from, row);
    default:
      return UnknownKeys(from);
  }
}

}  // namespace

struct RowParser::State {
  simdjson::dom::parser parser;
  // The last rows of a file, with room behind them.
  std::string padded;
};

RowParser::RowParser() : state_(std::make_unique<State>()) {}
RowParser::~RowParser() = default;

absl::Status RowParser::Parse(absl::string_view json, size_t readable,
                              Kind kind, Row* row) {
  row->Clear();
  const char* data = json.data();
  if (readable < json.size() + simdjson::SIMDJSON_PADDING) {
    state_->padded.assign(json.data(), json.size());
    state_->padded.append(simdjson::SIMDJSON_PADDING, ' ');
    data = state_->padded.data();
  }
  element value;
  const simdjson::error_code error =
      state_->parser.parse(data, json.size(), false).get(value);
  if (error == simdjson::UTF8_ERROR) return Bad("is not UTF-8");
  if (error != simdjson::SUCCESS) {
    return Bad(absl::StrCat("broken JSON: ", simdjson::error_message(error)));
  }
  object from;
  if (value.get(from) != simdjson::SUCCESS) {
    return Bad(absl::StrCat("is ", TypeText(value), ", not an object"));
  }
  row->kind = kind == AUTO ? KindOf(from) : kind;
  return Fill(from, row);
}

}  // namespace chat
}  // namespace capstan
