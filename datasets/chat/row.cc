// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row.h"

#include <simdjson.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_document.h"
#include "base/status.h"
#include "datasets/chat/row_json.h"
#include "datasets/chat/turns.h"

namespace capstan {
namespace chat {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

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
    std::string tools;
    CAPSTAN_RETURN_IF_ERROR(ToolsText(from, &tools));
    CAPSTAN_RETURN_IF_ERROR(AddTurns(from, "prompt", kMessageKeys, tools, row));
    row->prompt_messages = row->messages().size();
    return AddTurns(from, "completion", kMessageKeys, "", row);
  }
  absl::string_view text;
  row->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(Text(from, "prompt", &text));
  row->prompt.assign(text.data(), text.size());
  CAPSTAN_RETURN_IF_ERROR(Text(from, "completion", &text));
  row->completion.assign(text.data(), text.size());
  return absl::OkStatus();
}

absl::Status FillMessages(const object& from, Row* row) {
  std::string tools;
  CAPSTAN_RETURN_IF_ERROR(ToolsText(from, &tools));
  return AddTurns(from, "messages", kMessageKeys, tools, row);
}

absl::Status FillShareGpt(const object& from, Row* row) {
  std::string tools;
  CAPSTAN_RETURN_IF_ERROR(ToolsText(from, &tools));
  absl::string_view system;
  CAPSTAN_RETURN_IF_ERROR(OptionalText(from, "system", &system));
  if (!system.empty()) {
    row->Add("system", SystemText(system, tools));
    tools.clear();
  }
  return AddTurns(from, "conversations", kShareGptKeys, tools, row);
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
      return FillMessages(from, row);
    case SHAREGPT:
      return FillShareGpt(from, row);
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
};

RowParser::RowParser() : state_(std::make_unique<State>()) {}
RowParser::~RowParser() = default;

absl::Status RowParser::Parse(absl::string_view json, size_t readable,
                              Kind kind, Row* row) {
  row->Clear();
  element value;
  const simdjson::error_code error =
      ParseJsonDocument(json, readable, &state_->parser, &value);
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
