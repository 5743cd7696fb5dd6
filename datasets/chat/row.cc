// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row.h"

#include <simdjson.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_document.h"
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

// The keys of a message's role and text.
struct TurnKeys {
  const char* role;
  const char* content;
  bool sharegpt;  // roles are ShareGPT's
};
constexpr TurnKeys kMessageKeys = {"role", "content", false};
constexpr TurnKeys kShareGptKeys = {"from", "value", true};

// What people call the two sides of a turn, the most telling name first.
constexpr const char* kUserKeys[] = {"user",  "question",    "prompt",
                                     "input", "instruction", "query"};
constexpr const char* kAssistantKeys[] = {"assistant", "answer", "response",
                                          "target",    "output", "completion"};
// Of a row that nobody knows, in an error.
constexpr size_t kMostShown = 300;

template <typename... Parts>
absl::Status Bad(const Parts&... problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem...));
}

absl::string_view View(std::string_view text) {
  return {text.data(), text.size()};
}

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

// Whether the key is there and not null.
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

// The first of `keys` that the row has; null if none.
template <size_t kCount>
const char* FirstOf(const object& row, const char* const (&keys)[kCount]) {
  const auto key = std::find_if(std::begin(keys), std::end(keys),
                                [&](const char* k) { return Has(row, k); });
  return key == std::end(keys) ? nullptr : *key;
}

absl::Status CopyText(const object& row, const char* key, std::string* out) {
  absl::string_view text;
  CAPSTAN_RETURN_IF_ERROR(Text(row, key, &text));
  out->assign(text.data(), text.size());
  return absl::OkStatus();
}

// "" if the key is absent or null.
absl::Status OptionalText(const object& row, const char* key,
                          absl::string_view* out) {
  *out = "";
  element value;
  return Find(row, key, &value) ? Text(row, key, out) : absl::OkStatus();
}

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

// The text for the system's turn about the row's "tools", a JSON list or its
// text; "" if there are none.
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

// Adds a turn for each message of the list `key`, which must not be empty.
// `tools` is added to the first turn if that is the system's, otherwise before
// it.
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

absl::Status FillMessages(const object& from, Row* row) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string tools, ToolsText(from));
  return AddTurns(from, "messages", kMessageKeys, tools, row);
}

absl::Status FillPromptCompletion(const object& from, Row* row) {
  array messages;
  if (from.at_key("prompt").get(messages) == simdjson::SUCCESS) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string tools, ToolsText(from));
    CAPSTAN_RETURN_IF_ERROR(AddTurns(from, "prompt", kMessageKeys, tools, row));
    row->prompt_messages = row->messages().size();
    return AddTurns(from, "completion", kMessageKeys, "", row);
  }
  row->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(CopyText(from, "prompt", &row->prompt));
  return CopyText(from, "completion", &row->completion);
}

absl::Status FillShareGpt(const object& from, Row* row) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string tools, ToolsText(from));
  CAPSTAN_RETURN_IF_ERROR(AddSystem(from, tools, row));
  return AddTurns(from, "conversations", kShareGptKeys,
                  row->messages().empty() ? tools : "", row);
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

absl::Status FillAlpaca(const object& from, Row* row) {
  CAPSTAN_RETURN_IF_ERROR(AddSystem(from, "", row));
  CAPSTAN_RETURN_IF_ERROR(AddHistory(from, row));
  absl::string_view instruction;
  absl::string_view input;
  CAPSTAN_RETURN_IF_ERROR(Text(from, "instruction", &instruction));
  CAPSTAN_RETURN_IF_ERROR(
      OptionalText(from, Has(from, "input") ? "input" : "context", &input));
  row->Add("user", absl::StrCat(instruction, input.empty() ? "" : "\n", input));
  const char* const answer = FirstOf(from, kAssistantKeys);
  return AddText(from, answer == nullptr ? "output" : answer, "assistant", row);
}

absl::Status FillInputTarget(const object& from, Row* row) {
  const char* const user = FirstOf(from, kUserKeys);
  const char* const assistant = FirstOf(from, kAssistantKeys);
  if (user == nullptr) return Missing(kUserKeys[0]);
  if (assistant == nullptr) return Missing(kAssistantKeys[0]);
  CAPSTAN_RETURN_IF_ERROR(AddSystem(from, "", row));
  return FillPair(from, user, assistant, row);
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

// ---- Preferences, with TRL's keys.

// The bytes with which both begin, in whole characters. A space before what
// differs belongs to that, as in TRL's extract_prompt.
size_t SharedBytes(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n =
      std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
  const auto inside = [](absl::string_view text, size_t i) {
    return i < text.size() && (text[i] & 0xc0) == 0x80;
  };
  while (n > 0 && (inside(a, n) || inside(b, n))) --n;
  return n > 0 && n < most && a[n - 1] == ' ' ? n - 1 : n;
}

size_t SharedTurns(const Row& a, const Row& b) {
  const size_t most = std::min(a.messages().size(), b.messages().size());
  size_t n = 0;
  while (n < most && a.messages()[n].role == b.messages()[n].role &&
         a.messages()[n].content == b.messages()[n].content) {
    ++n;
  }
  return n;
}

absl::Status NoPrompt() {
  return Bad(
      "has no \"prompt\", and its \"chosen\" and \"rejected\" don't begin "
      "alike");
}

absl::Status FillPreferredTexts(const object& from, bool has_prompt, Row* row,
                                Row* other) {
  row->is_text = other->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(CopyText(from, "chosen", &row->completion));
  CAPSTAN_RETURN_IF_ERROR(CopyText(from, "rejected", &other->completion));
  if (has_prompt) {
    CAPSTAN_RETURN_IF_ERROR(CopyText(from, "prompt", &row->prompt));
  } else {
    const size_t shared = SharedBytes(row->completion, other->completion);
    if (shared == 0) return NoPrompt();
    row->prompt = row->completion.substr(0, shared);
    row->completion.erase(0, shared);
    other->completion.erase(0, shared);
  }
  other->prompt = row->prompt;
  return absl::OkStatus();
}

// The turns of `key`, a list of messages or the assistant's text.
absl::Status AddAnswer(const object& from, const char* key, Row* row) {
  element value;
  if (from.at_key(key).get(value) == simdjson::SUCCESS && value.is_string()) {
    return AddText(from, key, "assistant", row);
  }
  return AddTurns(from, key, kMessageKeys, "", row);
}

absl::Status FillPreferredTurns(const object& from, const element* prompt,
                                Row* row, Row* other) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string tools, ToolsText(from));
  size_t shared = 0;
  if (prompt == nullptr || prompt->is_string()) {
    // The prompt is what both begin with; a text beside that says it again.
    CAPSTAN_RETURN_IF_ERROR(AddTurns(from, "chosen", kMessageKeys, tools, row));
    CAPSTAN_RETURN_IF_ERROR(
        AddTurns(from, "rejected", kMessageKeys, tools, other));
    shared = SharedTurns(*row, *other);
    if (shared == 0 && prompt == nullptr) return NoPrompt();
  }
  if (shared == 0) {
    const Kind kind = row->kind;
    row->Clear();
    row->kind = kind;
    for (Row* each : {row, other}) {
      if (prompt->is_array()) {
        CAPSTAN_RETURN_IF_ERROR(
            AddTurns(from, "prompt", kMessageKeys, tools, each));
      } else {
        if (!tools.empty()) each->Add("system", tools);
        CAPSTAN_RETURN_IF_ERROR(AddText(from, "prompt", "user", each));
      }
    }
    shared = row->messages().size();
    CAPSTAN_RETURN_IF_ERROR(AddAnswer(from, "chosen", row));
    CAPSTAN_RETURN_IF_ERROR(AddAnswer(from, "rejected", other));
  }
  row->prompt_messages = other->prompt_messages = shared;
  for (const Row* each : {row, other}) {
    if (each->messages().size() > shared) continue;
    return Bad("\"", each == row ? "chosen" : "rejected",
               "\" has no turn that the other hasn't");
  }
  return absl::OkStatus();
}

absl::Status FillPreference(const object& from, Row* row) {
  if (row->rejected == nullptr) row->rejected = std::make_unique<Row>();
  Row* const other = row->rejected.get();
  element prompt, chosen, rejected;
  if (!Find(from, "chosen", &chosen)) return Missing("chosen");
  if (!Find(from, "rejected", &rejected)) return Missing("rejected");
  const bool has_prompt = Find(from, "prompt", &prompt);
  if (has_prompt && !prompt.is_string() && !prompt.is_array()) {
    return WrongType("prompt", prompt, "a text or a list of messages");
  }
  if (chosen.is_string() && !(has_prompt && prompt.is_array())) {
    return FillPreferredTexts(from, has_prompt, row, other);
  }
  return FillPreferredTurns(from, has_prompt ? &prompt : nullptr, row, other);
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
      CAPSTAN_RETURN_IF_ERROR(AddSystem(from, "", row));
      return FillPair(from, "user", "assistant", row);
    case TEXT:
      return FillText(from, row);
    case PREFERENCE:
      return FillPreference(from, row);
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
  return Fill(from, row);
}

}  // namespace capstan::chat
