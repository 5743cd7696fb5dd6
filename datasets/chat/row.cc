// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row.h"

#include <simdjson.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_document.h"
#include "base/status.h"
#include "datasets/chat/row_fields.h"

namespace capstan::chat {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// What people call the two sides of a turn, the most telling name first.
constexpr const char* kUserKeys[] = {"user",  "question",    "prompt",
                                     "input", "instruction", "query"};
constexpr const char* kAssistantKeys[] = {"assistant", "answer", "response",
                                          "target",    "output", "completion"};
// Of a row that nobody knows, in an error.
constexpr size_t kMostShown = 300;

// The beginning of a row, for an error.
std::string Shown(const object& row) {
  std::string text = simdjson::minify(row);
  if (text.size() <= kMostShown) return text;
  size_t end = kMostShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
    --end;
  }
  text.resize(end);
  return text + "..";
}

absl::Status FillMessages(const object& from, Row* row) {
  CAPSTAN_RETURN_IF_ERROR(AddContext(from, row));
  return AddTurns(from, "messages", kMessageKeys, row);
}

absl::Status FillPromptCompletion(const object& from, Row* row) {
  array messages;
  if (from.at_key("prompt").get(messages) == simdjson::SUCCESS) {
    CAPSTAN_RETURN_IF_ERROR(AddContext(from, row));
    CAPSTAN_RETURN_IF_ERROR(AddTurns(from, "prompt", kMessageKeys, row));
    row->prompt_messages = row->messages().size();
    return AddTurns(from, "completion", kMessageKeys, row);
  }
  row->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(CopyText(from, "prompt", &row->prompt));
  return CopyText(from, "completion", &row->completion);
}

// Tables often have numbers, also 1.0, and CSV files have texts.
absl::Status FillUnpaired(const object& from, Row* row) {
  element label;
  if (!Find(from, "label", &label)) return Missing("label");
  std::string_view text;
  const std::string value = label.get(text) == simdjson::SUCCESS
                                ? absl::AsciiStrToLower(View(text))
                                : simdjson::minify(label);
  double number = 0.0;
  const bool is_number = absl::SimpleAtod(value, &number);
  row->desirable = value == "true" || (is_number && number == 1.0);
  if (!row->desirable && value != "false" && !(is_number && number == 0.0)) {
    return WrongType("label", label, "true or false, or 1 or 0");
  }
  return FillPromptCompletion(from, row);
}

absl::Status FillShareGpt(const object& from, Row* row) {
  CAPSTAN_RETURN_IF_ERROR(AddContext(from, row));
  CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
  return AddTurns(from, "conversations", kShareGptKeys, row);
}

absl::Status FillText(const object& from, Row* row) {
  row->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(CopyText(from, "text", &row->completion));
  return row->completion.empty() ? Bad("\"text\" is empty") : absl::OkStatus();
}

absl::Status FillPair(const object& from, const char* user,
                      const char* assistant, Row* row) {
  CAPSTAN_RETURN_IF_ERROR(AddText(from, user, "user", row));
  return AddText(from, assistant, "assistant", row);
}

absl::Status AddHistory(const object& from, Row* row) {
  element value;
  if (!Find(from, "history", &value)) return absl::OkStatus();
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
      row->Add(role, View(content));
      role = "assistant";
    }
  }
  return absl::OkStatus();
}

absl::Status AddInstruction(const object& from, Row* row) {
  CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
  CAPSTAN_RETURN_IF_ERROR(AddHistory(from, row));
  absl::string_view instruction;
  absl::string_view input;
  CAPSTAN_RETURN_IF_ERROR(Text(from, "instruction", &instruction));
  CAPSTAN_RETURN_IF_ERROR(
      OptionalText(from, Has(from, "input") ? "input" : "context", &input));
  row->Add("user", absl::StrCat(instruction, input.empty() ? "" : "\n", input));
  return absl::OkStatus();
}

absl::Status FillAlpaca(const object& from, Row* row) {
  CAPSTAN_RETURN_IF_ERROR(AddInstruction(from, row));
  const char* const answer = FirstOf(from, kAssistantKeys);
  return AddText(from, answer == nullptr ? "output" : answer, "assistant", row);
}

absl::Status FillInputTarget(const object& from, Row* row) {
  const char* const user = FirstOf(from, kUserKeys);
  const char* const assistant = FirstOf(from, kAssistantKeys);
  if (user == nullptr) return Missing(kUserKeys[0]);
  if (assistant == nullptr) return Missing(kAssistantKeys[0]);
  CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
  return FillPair(from, user, assistant, row);
}

// The turns of a conversation without the answer at its end, if there is one.
absl::Status AddPromptTurns(const object& from, const char* list, Row* row) {
  const bool sharegpt = absl::string_view(list) == "conversations";
  if (sharegpt) CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
  CAPSTAN_RETURN_IF_ERROR(
      AddTurns(from, list, sharegpt ? kShareGptKeys : kMessageKeys, row));
  if (row->messages().back().role != "assistant") return absl::OkStatus();
  if (absl::string_view(list) == "prompt") {
    return Bad("\"prompt\" ends with an answer, which isn't sampled then");
  }
  row->DropLastMessage();
  return row->messages().empty() ? Bad("\"", list, "\" is an answer alone")
                                 : absl::OkStatus();
}

// Answers may be numbers or lists, which only rewards read.
absl::Status FillPrompt(const object& from, Row* row) {
  element prompt;
  array messages;
  const bool has_prompt = Find(from, "prompt", &prompt);
  if (has_prompt && prompt.get(messages) != simdjson::SUCCESS) {
    row->is_text = true;
    CAPSTAN_RETURN_IF_ERROR(CopyText(from, "prompt", &row->prompt));
    return row->prompt.empty() ? Bad("\"prompt\" is empty") : absl::OkStatus();
  }
  CAPSTAN_RETURN_IF_ERROR(AddContext(from, row));
  const char* const list = has_prompt                   ? "prompt"
                           : Has(from, "messages")      ? "messages"
                           : Has(from, "conversations") ? "conversations"
                                                        : nullptr;
  const char* const user = FirstOf(from, kUserKeys);
  if (list != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(AddPromptTurns(from, list, row));
  } else if (Has(from, "instruction")) {
    CAPSTAN_RETURN_IF_ERROR(AddInstruction(from, row));
  } else if (user != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(AddSystem(from, row));
    CAPSTAN_RETURN_IF_ERROR(AddText(from, user, "user", row));
  } else {
    return Bad(
        "has neither a \"prompt\" nor messages, conversations, an instruction "
        "or a question, to which the model could answer; it is ",
        Shown(from));
  }
  row->prompt_messages = row->messages().size();
  return absl::OkStatus();
}

// ["question", "answer"], or the answer in an object.
absl::Status FillList(const array& list, Row* row) {
  std::string_view question;
  std::string_view answer;
  object by_key;
  if (list.size() != 2 || list.at(0).get(question) != simdjson::SUCCESS) {
    return Bad("is a list, not an object or [question, answer]");
  }
  row->Add("user", View(question));
  if (list.at(1).get(answer) == simdjson::SUCCESS) {
    row->Add("assistant", View(answer));
    return absl::OkStatus();
  }
  const char* const key = list.at(1).get(by_key) == simdjson::SUCCESS
                              ? FirstOf(by_key, kAssistantKeys)
                              : nullptr;
  if (key != nullptr) return AddText(by_key, key, "assistant", row);
  return Bad("is a list whose second element is no answer");
}

// The first kind, from the most specific, whose required keys exist. Never
// PREFERENCE, since whoever trains on texts isn't to learn the rejected ones.
Kind KindOf(const object& row) {
  if (Has(row, "messages")) return MESSAGES;
  if (Has(row, "conversations")) return SHAREGPT;
  if (Has(row, "prompt") && Has(row, "completion")) return PROMPT_COMPLETION;
  if (Has(row, "instruction") && Has(row, "output")) return ALPACA;
  if (Has(row, "question") && Has(row, "answer")) return QUESTION_ANSWER;
  if (Has(row, "user") && Has(row, "assistant")) return SYSTEM_USER_ASSISTANT;
  if (Has(row, "text")) return TEXT;
  if (FirstOf(row, kAssistantKeys) == nullptr) return AUTO;
  if (Has(row, "instruction")) return ALPACA;
  return FirstOf(row, kUserKeys) == nullptr ? AUTO : INPUT_TARGET;
}

absl::Status UnknownKeys(const object& row) {
  std::vector<std::string> keys;
  for (const auto& field : row) {
    if (keys.size() == 8) {
      keys.push_back("..");
      break;
    }
    keys.push_back(absl::StrCat("\"", View(field.key), "\""));
  }
  return Bad(
      keys.empty() ? "is an object without keys"
                   : absl::StrCat("has the keys ", absl::StrJoin(keys, ", ")),
      "; a row has messages, conversations, prompt and completion, instruction "
      "and output, question and answer, user and assistant, input and target, "
      "or text; it is ",
      Shown(row));
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
    case PREFERENCE:
      return FillPreference(from, row);
    case UNPAIRED:
      return FillUnpaired(from, row);
    case PROMPT:
      return FillPrompt(from, row);
    case INPUT_TARGET:
      return FillInputTarget(from, row);
    default:
      return UnknownKeys(from);
  }
}

}  // namespace

bool IsRowKey(absl::string_view key) {
  const auto is = [&](const char* known) { return key == known; };
  return key == "messages" || key == "conversations" || key == "text" ||
         std::any_of(std::begin(kUserKeys), std::end(kUserKeys), is) ||
         std::any_of(std::begin(kAssistantKeys), std::end(kAssistantKeys), is);
}

ChatInput Row::Input(size_t count, std::string* json) const {
  ChatInput input;
  input.messages = messages().first(count);
  input.tools = tools;
  input.documents = documents;
  input.own_variables = variables;
  const auto begin = jsons_.begin();
  if (std::all_of(begin, begin + static_cast<int64_t>(count),
                  [](const std::string& one) { return one.empty(); })) {
    return input;
  }
  *json = "[";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) *json += ",";
    if (jsons_[i].empty()) {
      *json += MessageJson(messages_[i].role, messages_[i].content);
    } else {
      *json += jsons_[i];
    }
  }
  *json += "]";
  input.messages_json = *json;
  return input;
}

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
    return Bad("broken JSON: ", simdjson::error_message(error));
  }
  object from;
  array list;
  if (value.get(list) == simdjson::SUCCESS &&
      (kind == AUTO || kind == INPUT_TARGET)) {
    row->kind = INPUT_TARGET;
    return FillList(list, row);
  }
  if (value.get(from) != simdjson::SUCCESS) {
    return Bad("is ", TypeText(value), ", not an object");
  }
  row->kind = kind == AUTO ? KindOf(from) : kind;
  row->source = json;
  const absl::Status filled = Fill(from, row);
  row->source = "";
  return filled;
}

}  // namespace capstan::chat
