// SPDX-License-Identifier: Apache-2.0
//
// What answers are worth: by the text alone, by the prompt's row, or by a
// program that is asked. A reward from outside is a plugin of category Part
// (CAPSTAN_PLUGIN(Part, ..)) whose class derives from RewardFunction: this
// header and the SDK are all it needs.
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_REWARD_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_REWARD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/sdk/part.h"

namespace capstan::grpo {

// An answer to score. The strings outlive the call.
struct Answer {
  absl::string_view row;     // JSON of the prompt's row, as in its file
  absl::string_view prompt;  // as the model read it
  // Without the token that ended it; of several turns the last one.
  absl::string_view text;
  int64_t tokens = 0;      // that the model wrote, in all of its turns
  bool truncated = false;  // max_new_tokens ended it
  // With tools: the model's turns so far, and a JSON list of all messages that
  // follow the prompt, {"role": "assistant", "content": ..} and so on.
  int64_t turn = 1;
  absl::string_view messages;
};

// Its Create starts nothing: programs start at the first Score. Not
// thread-safe, and Score is called on one thread, another than Create and
// CheckRow: what it starts may end with that thread.
class RewardFunction : public Part {
 public:
  // Checks a row of the data, so that a field that is missing is told before
  // training. The error doesn't name the row's place. What a config's field is
  // wrong about for any row, and Create doesn't see, is a FieldError.
  virtual absl::Status CheckRow(absl::string_view row) const = 0;

  // A finite number for each answer, in order; NaN where this reward doesn't
  // apply. The same for the same answers, however they are divided into calls,
  // unless a program says otherwise. Errors say what to do; the caller adds the
  // reward's name.
  virtual absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) = 0;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_REWARD_H_
