// SPDX-License-Identifier: Apache-2.0
//
// The texts of a request as OpenAI's API returns them: whole, or as events
// while they are written.
#ifndef CAPSTAN_DESK_SERVE_REPLY_H_
#define CAPSTAN_DESK_SERVE_REPLY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "desk/serve/openai_request.h"
#include "inference/decode/stop_strings.h"
#include "inference/engine/answers.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// A prompt as a model continues it.
struct ReplyPrompt {
  std::vector<int64_t> ids;
  std::string text;           // to echo
  std::vector<int64_t> ends;  // all tokens that end its texts
};

class Reply {
 public:
  // `model`: as the client is told. The tokenizer outlives this.
  Reply(Api api, CompletionRequest request, std::string model,
        std::vector<ReplyPrompt> prompts, StopStrings stops,
        const Tokenizer* tokenizer);
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  // Adds a piece, whose AnswerPiece::request is the prompt's number times the
  // choices of each, plus the choice.
  void Add(const AnswerPiece& piece);
  // The same; returns the events that tell of it.
  std::string AddToStream(const AnswerPiece& piece);
  // Before all others, and after them.
  std::string FirstEvents();
  std::string LastEvents() const;
  // All, as one answer.
  nlohmann::json Whole() const;

 private:
  struct Choice {
    explicit Choice(const StopStrings* stops) : certain(stops) {}
    CertainText certain;
    std::vector<int64_t> whole;    // AnswerPiece::whole
    std::string text;              // what is certain of it
    size_t sent = 0;               // bytes of it, to a stream
    int64_t tokens = 0;            // new ones
    int64_t characters = 0;        // in front of the next token
    nlohmann::json logprobs;       // null: none are asked for
    std::vector<int64_t> offsets;  // of its tokens, in characters
    bool at_end = false;           // the last token was one of its ends
    nlohmann::json finish;         // reason; null: it isn't done
  };

  const ReplyPrompt& PromptOf(size_t choice) const {
    return prompts_[choice / static_cast<size_t>(request_.choices)];
  }
  nlohmann::json NewLogprobs() const;
  void AddLogprob(const AnswerToken& token, bool first, Choice* choice) const;
  // Of tokens that a stop string has taken back, as far as they aren't sent.
  void DropBehindStop(Choice* choice) const;
  std::string TokenText(int64_t token) const;
  nlohmann::json Frame(const char* object) const;
  nlohmann::json ChoiceFrame(size_t index) const;
  nlohmann::json Usage() const;
  std::string Event(nlohmann::json choice) const;

  const Api api_;
  const CompletionRequest request_;
  const std::string model_, id_;
  const int64_t created_;
  const std::vector<ReplyPrompt> prompts_;
  const StopStrings stops_;
  const Tokenizer* const tokenizer_;
  std::vector<Choice> choices_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_SERVE_REPLY_H_
