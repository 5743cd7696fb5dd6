// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_ROW_H_
#define CAPSTAN_DATASETS_CHAT_ROW_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "datasets/chat/chat.pb.h"
#include "plugins/sdk/chat_template.h"

namespace capstan::chat {

// The content of a row of any kind: a conversation, or texts. Meant to be
// reused, so that its strings keep their memory.
class Row {
 public:
  void Clear() {
    kind = AUTO;
    is_text = false;
    desirable = false;
    margin = 0.0;
    prompt_messages = 0;
    prompt.clear();
    completion.clear();
    tools.clear();
    documents.clear();
    variables.clear();
    source = "";
    if (rejected != nullptr) rejected->Clear();
    count_ = 0;
  }
  void ClearMessages() { count_ = 0; }
  void DropLastMessage() { --count_; }
  // `json` is the whole message if it has more than role and content.
  void Add(absl::string_view role, absl::string_view content,
           absl::string_view json = "") {
    if (count_ == messages_.size()) {
      messages_.emplace_back();
      jsons_.emplace_back();
    }
    messages_[count_].role.assign(role.data(), role.size());
    messages_[count_].content.assign(content.data(), content.size());
    jsons_[count_].assign(json.data(), json.size());
    ++count_;
  }
  // Empty where is_text.
  absl::Span<const ChatMessage> messages() const {
    return absl::MakeConstSpan(messages_).first(count_);
  }
  // A message as JSON; "" if it has only role and content.
  const std::string& json(size_t message) const { return jsons_[message]; }
  // The same message in two rows.
  static bool Same(const Row& a, const Row& b, size_t message) {
    return a.messages_[message].role == b.messages_[message].role &&
           a.messages_[message].content == b.messages_[message].content &&
           a.jsons_[message] == b.jsons_[message];
  }
  // The first `count` messages with what else a template sees; `*json` is
  // memory that the result may view.
  ChatInput Input(size_t count, std::string* json) const;

  Kind kind = AUTO;  // never AUTO once filled
  // PROMPT_COMPLETION, UNPAIRED and PROMPT of texts, or TEXT (in `completion`).
  bool is_text = false;
  std::string prompt;
  std::string completion;
  bool desirable = false;  // UNPAIRED: its label
  // PREFERENCE: by how much the chosen text should score higher.
  double margin = 0.0;
  // PROMPT_COMPLETION, UNPAIRED, PREFERENCE and PROMPT of messages: how many
  // are the prompt's.
  size_t prompt_messages = 0;
  // JSON texts: the tools' list, the documents' list and the object
  // chat_template_kwargs; "" if there are none.
  std::string tools;
  std::string documents;
  std::string variables;
  // The row's own text, while it is parsed.
  absl::string_view source;
  // PREFERENCE: the same prompt with the other completion. Null until needed.
  std::unique_ptr<Row> rejected;

 private:
  std::vector<ChatMessage> messages_;
  std::vector<std::string> jsons_;  // "" for those that are plain
  size_t count_ = 0;
};

// Whether a row may have such a key, and a file's {"data": [..]} may not.
bool IsRowKey(absl::string_view key);

// Parses JSON into rows. One per thread.
class RowParser {
 public:
  RowParser();
  ~RowParser();

  // `json` is one object, or ["question", ..]; `readable` bytes from
  // json.data() on may be read (the parser reads a few past the end if
  // possible). kind AUTO: by the keys. INVALID_ARGUMENT: malformed JSON,
  // invalid UTF-8, keys of no known kind, values of wrong types, no messages.
  absl::Status Parse(absl::string_view json, size_t readable, Kind kind,
                     Row* row);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_ROW_H_
