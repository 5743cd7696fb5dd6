// SPDX-License-Identifier: Apache-2.0
//
// What a model continues or answers.
#ifndef CAPSTAN_INFERENCE_DECODE_PROMPT_H_
#define CAPSTAN_INFERENCE_DECODE_PROMPT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "inference/load/generator.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// A text to continue or, if it has messages, a conversation to answer.
struct Prompt {
  std::string place;  // "prompts.jsonl:3", for errors
  std::string text;
  std::vector<ChatMessage> messages;
  // The same as the row has them, and what else a template sees (ChatInput).
  std::string messages_json;
  std::string tools;
  std::string documents;
  std::string variables;
};

// A prompt as the model sees it.
struct Task {
  const Prompt* prompt;
  std::vector<int64_t> ids;
  std::vector<int64_t> stops;  // besides the model's own end of text
};

// Reads prompts from a file or standard input ("-"), one per line, skipping
// blank lines. Lines are JSON if the name ends in .jsonl or the first is an
// object with a prompt or messages: {"prompt": "text"}, {"prompt": [MESSAGE,
// ..]}, {"messages": [MESSAGE, ..]} or "text". Errors name the line. Returns at
// least one prompt.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path);

// Reads a row of such a file, without its place.
absl::Status ParsePrompt(absl::string_view row, Prompt* prompt);

// What a row has for a template beside messages, as it is written. `row` is the
// text of a valid JSON object.
void ReadContext(absl::string_view row, Prompt* prompt);

struct TaskSettings {
  std::string model;                 // --model, for errors
  std::string chat_template;         // as FindChatTemplate has it
  std::string chat_template_kwargs;  // a JSON object: ChatInput::variables
};

// Renders conversations with their template, and texts with the tokenizer's
// start tokens, as in training: a task for each prompt. All of them before any
// is generated, so that a bad prompt fails early. OUT_OF_RANGE: it's too long.
// Errors name the field chat_template_kwargs if it is wrong.
absl::StatusOr<std::vector<Task>> MakeTasks(const std::vector<Prompt>& prompts,
                                            const TaskSettings& settings,
                                            const Generator& generator);

// The template `name`, or, if empty, the tokenizer's own. Its special tokens
// must be in the tokenizer.
absl::StatusOr<std::unique_ptr<ChatTemplate>> FindChatTemplate(
    const std::string& name, const Tokenizer& tokenizer);

// The same for the flags --template and --chat_template_kwargs, which errors
// name.
absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplateOf(
    const TaskSettings& settings, const Tokenizer& tokenizer);

// The tokens that end an answer: end of turn and end of text.
std::vector<int64_t> AnswerStops(const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_DECODE_PROMPT_H_
