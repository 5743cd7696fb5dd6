// SPDX-License-Identifier: Apache-2.0
//
// The prompts that generate is given, and the file that it writes.
#ifndef CAPSTAN_TRAINER_COMMANDS_PROMPTS_H_
#define CAPSTAN_TRAINER_COMMANDS_PROMPTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/chat_template.h"

namespace capstan {

// A text to continue or, where it has messages, a conversation to answer.
struct Prompt {
  std::string place;  // "prompts.jsonl:3", for errors
  std::string text;
  std::vector<ChatMessage> messages;
};

// The prompts of a file, or of standard input ("-"): one a line, blank lines
// aside. Lines are rows of JSON where the name ends in .jsonl, or where the
// first is an object with a prompt or messages: {"prompt": "text"},
// {"prompt": [MESSAGE, ..]}, {"messages": [MESSAGE, ..]} or "text". Errors name
// the line. At least one prompt.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path);

// A line for --output: {"prompt": TEXT or [MESSAGE, ..], "text": ..}, with
// U+FFFD for bytes that are no UTF-8.
std::string OutputRow(const Prompt& prompt, const std::string& text);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_PROMPTS_H_
