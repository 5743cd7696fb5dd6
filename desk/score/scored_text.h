// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_SCORE_SCORED_TEXT_H_
#define CAPSTAN_DESK_SCORE_SCORED_TEXT_H_

#include <google/protobuf/any.pb.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "inference/decode/prompt.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// How a reward model's run read its texts.
struct Reading {
  int64_t max_length = 0;  // tokens of a text; 0: any number
  bool keeps_end = false;  // of longer ones
  std::string chat_template_kwargs;
};

// As a run's train_data says, by the fields that readers of rows have
// (docs/chat_data.md); an empty one says nothing.
Reading ReadingOf(const google::protobuf::Any& train_data);

// What a reward model reads of a line: the text that the same prompt and answer
// are in its training, as capstan.chat makes it of pairs (kind: PREFERENCE).
class ScoredTexts {
 public:
  // `tokenizer` outlives this. The settings' variables count more than those of
  // `reading`.
  ScoredTexts(const TaskSettings& settings, const Tokenizer& tokenizer,
              const Reading& reading = {});

  // Returns the tokens of a JSON object:
  //   {"prompt": .., "completion": ..}, texts or lists of messages
  //   {"messages": [..]}, with the answer
  //   {"text": ..}
  //   {"row": {..}, "text": ..}: the answer to a row's prompt or messages, as
  //     programs that reward get it (docs/grpo.md); with tools "messages" has
  //     all that follows the prompt
  // Errors don't name the line's place; OUT_OF_RANGE: a character that the
  // tokenizer doesn't know. At least one token.
  absl::StatusOr<std::vector<int64_t>> TokensOf(absl::string_view line);

 private:
  absl::StatusOr<std::vector<int64_t>> UncutTokensOf(absl::string_view line);
  absl::StatusOr<std::vector<int64_t>> TokensOfText(
      const std::string& prompt, const std::string& completion) const;
  absl::StatusOr<std::vector<int64_t>> TokensOfChat(const Prompt& chat);

  const Reading reading_;
  TaskSettings settings_;
  const Tokenizer& tokenizer_;
  const std::string end_;                   // of an answer
  std::unique_ptr<ChatTemplate> template_;  // null: not needed yet
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_SCORE_SCORED_TEXT_H_
