// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_document.h"
#include "base/status.h"
#include "datasets/chat/source_file.h"
#include "datasets/chat/turns.h"

namespace capstan::chat {
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

// The first kind, from the most specific, whose required keys exist.
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

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

absl::Status Bad(const std::string& problem) {
  return absl::InvalidArgumentError(problem);
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

namespace {

constexpr absl::string_view kByteOrderMark("\xef\xbb\xbf", 3);

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Bytes at which scanning a value must act, outside of strings and (the second)
// inside.
using Table = std::array<bool, 256>;

Table TableOf(absl::string_view bytes) {
  Table table = {};
  for (char c : bytes) table[static_cast<unsigned char>(c)] = true;
  return table;
}

const Table kOutside = TableOf("\"{}[],\n");
const Table kInString = TableOf("\"\\\n");

}  // namespace

RowScanner::RowScanner(absl::string_view text) : text_(text) {
  if (absl::StartsWith(text_, kByteOrderMark)) at_ = kByteOrderMark.size();
  const uint64_t begin = at_;
  SkipSpace();
  if (at_ < text_.size() && text_[at_] == '[') {
    ++at_;
    is_list_ = true;
  } else if (at_ < text_.size() && text_[at_] == '{' && EnterDataList()) {
    is_list_ = true;
  } else {
    at_ = begin;
    line_ = 1;
  }
}

absl::Status RowScanner::Next(uint64_t bytes, std::vector<RowPlace>* rows) {
  rows->clear();
  if (is_list_) return NextElements(bytes, rows);
  NextLines(bytes, rows);
  return absl::OkStatus();
}

void RowScanner::NextLines(uint64_t bytes, std::vector<RowPlace>* rows) {
  const uint64_t stop = at_ + bytes;
  while (at_ < text_.size() && (at_ < stop || rows->empty())) {
    const void* const newline =
        std::memchr(text_.data() + at_, '\n', text_.size() - at_);
    const uint64_t end = newline == nullptr
                             ? text_.size()
                             : static_cast<const char*>(newline) - text_.data();
    uint64_t first = at_;
    uint64_t last = end;
    while (first < last && IsSpace(text_[first])) ++first;
    while (last > first && IsSpace(text_[last - 1])) --last;
    if (last > first) rows->push_back({first, last - first, line_});
    at_ = end + 1;
    ++line_;
  }
}

absl::Status RowScanner::NextElements(uint64_t bytes,
                                      std::vector<RowPlace>* rows) {
  const uint64_t stop = at_ + bytes;
  while (!is_closed_ && (at_ < stop || rows->empty())) {
    SkipSpace();
    if (at_ >= text_.size()) return Wrong("the list isn't closed");
    if (text_[at_] == ']') {
      ++at_;
      is_closed_ = true;
      break;
    }
    if (!is_first_) {
      if (text_[at_] != ',') return Wrong("a comma is missing before this");
      ++at_;
      SkipSpace();
    }
    is_first_ = false;
    RowPlace place{at_, 0, line_};
    SkipValue();
    place.bytes = at_ - place.offset;
    if (place.bytes == 0) return Wrong("an element of the list is missing");
    rows->push_back(place);
  }
  return absl::OkStatus();
}

void RowScanner::SkipSpace() {
  while (at_ < text_.size() && IsSpace(text_[at_])) {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }
}

// Skips the value at at_, or to the text's end. Errors within it are found when
// it is parsed.
void RowScanner::SkipValue() {
  int64_t depth = 0;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (!kOutside[static_cast<unsigned char>(c)]) {
      ++at_;
      continue;
    }
    if (c == '"') {
      ReadString();
      if (depth == 0) return;
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']' || c == '}')) return;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == '\n') ++line_;
    ++at_;
    if (depth == 0 && (c == '}' || c == ']')) return;
  }
}

// Returns the contents of the string at at_ and skips it.
absl::string_view RowScanner::ReadString() {
  const uint64_t begin = ++at_;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (!kInString[static_cast<unsigned char>(c)]) {
      ++at_;
      continue;
    }
    if (c == '"') return text_.substr(begin, at_++ - begin);
    if (c == '\n') ++line_;
    at_ += c == '\\' ? 2 : 1;
  }
  at_ = text_.size();
  return text_.substr(begin);
}

// At an object: enters the list in "data", if that comes before any key of a
// row.
bool RowScanner::EnterDataList() {
  ++at_;
  while (true) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != '"') return false;
    const absl::string_view key = ReadString();
    for (const char* row : {"messages", "conversations", "prompt", "completion",
                            "instruction", "question", "user", "text"}) {
      if (key == row) return false;
    }
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != ':') return false;
    ++at_;
    SkipSpace();
    if (key == "data" && at_ < text_.size() && text_[at_] == '[') {
      ++at_;
      return true;
    }
    SkipValue();
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != ',') return false;
    ++at_;
  }
}

absl::Status RowScanner::Wrong(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(line_, ": broken JSON: ", what));
}

uint64_t LineOf(absl::string_view text, uint64_t offset) {
  return 1 + std::count(text.begin(), text.begin() + offset, '\n');
}

}  // namespace capstan::chat
