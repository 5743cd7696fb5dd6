// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_SCORE_SCORED_TEXT_H_
#define CAPSTAN_DESK_SCORE_SCORED_TEXT_H_

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

// What a reward model reads of a line: the text that the same prompt and answer
// are in its training, as capstan.chat makes it of pairs (kind: PREFERENCE).
class ScoredTexts {
 public:
  // Both outlive this.
  ScoredTexts(const TaskSettings& settings, const Tokenizer& tokenizer)
      : settings_(settings), tokenizer_(tokenizer) {}

  // Returns the tokens of a JSON object:
  //   {"prompt": .., "completion": ..}, texts or lists of messages
  //   {"messages": [..]}, with the answer
  //   {"text": ..}
  //   {"row": {..}, "text": ..}: the answer to a row's prompt or messages, as
  //     programs that reward get it (docs/grpo.md)
  // Errors don't name the line's place. At least one token.
  absl::StatusOr<std::vector<int64_t>> TokensOf(absl::string_view line);

 private:
  absl::StatusOr<std::vector<int64_t>> TokensOfText(
      const std::string& prompt, const std::string& completion) const;
  absl::StatusOr<std::vector<int64_t>> TokensOfChat(const Prompt& chat);

  const TaskSettings& settings_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  // null: not needed yet
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_SCORE_SCORED_TEXT_H_
