// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/prompts.h"

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

bool IsRow(absl::string_view line) {
  if (!absl::StartsWith(line, "{")) return false;
  const Json row = ParseJson<Json>(line);
  return row.is_object() &&
         (row.contains("prompt") || row.contains("messages"));
}

absl::Status AddMessages(const Json& messages, Prompt* prompt) {
  for (const Json& message : messages) {
    const auto string_of = [&message](const char* key) {
      const auto found = message.find(key);
      return found != message.end() && found->is_string()
                 ? absl::make_optional(found->get<std::string>())
                 : absl::nullopt;
    };
    if (!message.is_object() || !string_of("role") || !string_of("content")) {
      return absl::InvalidArgumentError(
          "a message needs two strings, \"role\" and \"content\"");
    }
    prompt->messages.push_back({*string_of("role"), *string_of("content")});
  }
  if (prompt->messages.empty()) {
    return absl::InvalidArgumentError("has no message");
  }
  if (prompt->messages.back().role == "assistant") {
    return absl::InvalidArgumentError(
        "the last message is the assistant's: there is nothing to answer");
  }
  return absl::OkStatus();
}

absl::Status ParseRow(absl::string_view line, Prompt* prompt) {
  const Json row = ParseJson<Json>(line);
  if (row.is_discarded()) return absl::InvalidArgumentError("isn't valid JSON");
  if (row.is_object() && row.contains("messages") &&
      row["messages"].is_array()) {
    return AddMessages(row["messages"], prompt);
  }
  const Json what =
      row.is_object() && row.contains("prompt") ? row["prompt"] : row;
  if (what.is_array()) return AddMessages(what, prompt);
  if (!what.is_string()) {
    return absl::InvalidArgumentError(
        "must be {\"prompt\": TEXT}, {\"messages\": [..]} or a string");
  }
  prompt->text = what.get<std::string>();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path) {
  const bool standard_input = path == "-";
  const std::string name = standard_input ? "standard input" : path;
  std::string text;
  if (standard_input) {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(text, ReadWholeFile(path));
  }
  bool rows = absl::EndsWith(path, ".jsonl");
  std::vector<Prompt> prompts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::ConsumeSuffix(&line, "\r");
    if (prompts.empty() && IsRow(line)) rows = true;
    Prompt prompt;
    prompt.place = absl::StrCat(name, ":", number);
    if (rows) {
      CAPSTAN_RETURN_IF_ERROR(Annotate(ParseRow(line, &prompt), prompt.place));
    } else {
      prompt.text = std::string(line);
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no prompt in ", name));
  }
  return prompts;
}

std::string OutputRow(const Prompt& prompt, const std::string& text) {
  Json given = prompt.text;
  if (!prompt.messages.empty()) {
    given = Json::array();
    for (const ChatMessage& message : prompt.messages) {
      given.push_back({{"role", message.role}, {"content", message.content}});
    }
  }
  const Json row = {{"prompt", given}, {"text", text}};
  return absl::StrCat(
      row.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace),
      "\n");
}

}  // namespace capstan
