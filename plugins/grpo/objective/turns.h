// SPDX-License-Identifier: Apache-2.0
//
// Answers of several turns: where a turn of the model ends, a program may say
// something, a tool's result, say, and the model goes on.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_TURNS_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_TURNS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/grpo/objective/answers.h"
#include "plugins/grpo/objective/grpo.pb.h"
#include "plugins/grpo/objective/reply_writer.h"
#include "plugins/grpo/objective/side_thread.h"
#include "plugins/grpo/rewards/restarted_program.h"
#include "plugins/grpo/rewards/reward.h"
#include "plugins/sdk/dataset.h"

namespace capstan::grpo {

// A prompt and all that was said to it.
struct Conversation {
  std::string row;               // the prompt's, JSON
  std::string question;          // the prompt as a text
  std::vector<int64_t> text;     // the prompt and what follows
  int64_t prompt = 0;            // its tokens
  std::vector<float> log_probs;  // of what follows; 0 where a tool said it
  // Places in `text` of what tools said, with what the template writes around
  // it: ascending pairs of begin and end.
  std::vector<int64_t> told;
  bool truncated = false;  // max_new_tokens ended it
  std::string last_turn;   // the model's, without the token that ended it
  int64_t turn = 0;        // the model's so far
  std::string messages;    // with tools: Answer::messages
  int64_t calls = 0;       // messages that tools said
  int64_t failures = 0;    // of these, those that say of themselves so

  // Tokens that the model wrote.
  int64_t own() const;
  Answer answer() const;  // views this
};

// What a program says of a turn.
struct ToolReply {
  nlohmann::ordered_json messages;  // a list; empty: the answer is complete
  int64_t failures = 0;
};
// INVALID_ARGUMENT quotes what is wrong.
absl::StatusOr<ToolReply> ToolReplyOf(absl::string_view line);

// The config's tools.
class ToolProgram {
 public:
  // FieldErrors are of the whole config's fields.
  static absl::StatusOr<std::unique_ptr<ToolProgram>> Create(
      const Tools& config);

  // Before all else, with the training's data, whose tokenizer must outlive
  // this.
  void Prepare(const DatasetReader& data);
  bool prepared() const { return writer_ != nullptr; }
  // Of a prompt and its row.
  absl::Status CheckPrompt(absl::string_view prompt,
                           absl::string_view row) const {
    return writer_->Check(prompt, row);
  }

  // Lets the program say something after the last turn of each, in one go.
  // What doesn't fit into `max_new_tokens` with another token isn't said, and
  // truncates the answer. Returns which of them go on. While the program hasn't
  // replied it calls `wait` ten times a second; CANCELLED once that is false.
  absl::StatusOr<std::vector<size_t>> Reply(
      absl::Span<Conversation* const> conversations, int64_t max_new_tokens,
      const std::function<bool()>& wait);

  int64_t max_turns() const { return max_turns_; }  // 0: any

 private:
  absl::StatusOr<bool> Say(const ToolReply& reply, int64_t max_new_tokens,
                           Conversation* conversation);

  std::shared_ptr<RestartedProgram> program_;
  SideThread side_;  // asks it
  int64_t max_turns_ = 0;
  std::unique_ptr<ReplyWriter> writer_;
};

// Samples the answers of all questions, in order, of which `rows` are the
// prompts' rows, and has `tools`, unless it is null, reply to their turns. This
// rank runs as many forwards as the one that needs most, by `all_done`, also
// while it waits for the tools. An
// answer depends on model, prompt, seed and tools alone. Errors: SampleAnswers'
// and those of the tools.
absl::StatusOr<std::vector<Conversation>> Converse(
    TokenModel* model, absl::Span<const Question> questions,
    absl::Span<const std::string> rows, const AnswerOptions& options,
    const Tokenizer& tokenizer, ToolProgram* tools,
    const std::function<bool(bool done)>& all_done, UnitRunner& runner);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_TURNS_H_
