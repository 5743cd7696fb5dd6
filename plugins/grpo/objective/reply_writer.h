// SPDX-License-Identifier: Apache-2.0
//
// What a tool or a user says in the midst of an answer, as the tokens that the
// model reads between two turns of its own.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_REPLY_WRITER_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_REPLY_WRITER_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/dataset.h"

namespace capstan::grpo {

// By the chat template of the data's tokenizer: what it writes from the end of
// an assistant's turn to the head of its next one, which doesn't depend on what
// the turns before say. The prompt and the model's turns stay the tokens that
// they were, whatever the template would make of their texts.
//
// A prompt that is a text, and doesn't end with the head of an assistant's
// turn, is continued by what is said alone.
class ReplyWriter {
 public:
  using Json = nlohmann::ordered_json;

  // The tokenizer of `data` must outlive this.
  explicit ReplyWriter(const DatasetReader& data);

  // Whether replies can be written to a prompt of this text, of `row`, a JSON
  // object as in its file.
  absl::Status Check(absl::string_view prompt, absl::string_view row) const;

  // `messages` is a list of objects with "role", "content" and what the
  // template knows besides; `last` is the token that ended the model's turn.
  // Errors name the template, and say what it can't do.
  absl::StatusOr<std::vector<int64_t>> Write(absl::string_view prompt,
                                             absl::string_view row,
                                             int64_t last,
                                             const Json& messages);

 private:
  // How a prompt ends.
  struct Ending {
    bool is_text = false;
    std::string head;       // of the assistant's turn, unless it is a text
    std::string variables;  // the row's chat_template_kwargs, JSON
  };
  absl::StatusOr<Ending> EndingOf(absl::string_view prompt,
                                  absl::string_view row) const;
  absl::StatusOr<std::string> Render(const Json& messages,
                                     const std::string& variables,
                                     bool generation_prompt) const;
  // What the template appends to a user's turn for the model to answer it.
  std::string HeadBy(const std::string& variables) const;
  // What follows an assistant's turn that `end` ends.
  absl::StatusOr<std::string> Between(const Json& messages,
                                      const std::string& variables,
                                      absl::string_view end) const;
  absl::Status CheckRole(const Json& message, const std::string& variables,
                         absl::string_view end);

  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  // null: see no_template_
  absl::Status no_template_;
  // What a user's turn ends with; the head by the reader's settings.
  std::string user_end_;
  std::string head_;
  std::set<std::string> known_roles_;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_REPLY_WRITER_H_
