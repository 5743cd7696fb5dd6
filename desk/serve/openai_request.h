// SPDX-License-Identifier: Apache-2.0
//
// What a client asks of `trainer serve`, in the form of OpenAI's API.
#ifndef CAPSTAN_DESK_SERVE_OPENAI_REQUEST_H_
#define CAPSTAN_DESK_SERVE_OPENAI_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "desk/http/server.h"
#include "inference/decode/prompt.h"
#include "plugins/sdk/objective.h"

namespace capstan {

// The most texts that one request may ask for, and what of each.
constexpr int64_t kMostTexts = 256, kMostLogprobs = 20, kMostStops = 16;

enum class Api { kCompletions, kChat };

struct CompletionRequest {
  std::string model;  // "": the first
  // To continue or, of a chat, one conversation to answer; or, instead:
  std::vector<Prompt> prompts;
  std::vector<std::vector<int64_t>> prompt_ids;
  SampleOptions sample;  // without seed; max_new_tokens 0: isn't said
  absl::optional<uint64_t> seed;
  std::vector<std::string> stop;
  int64_t choices = 1;     // texts a prompt
  int64_t logprobs = -1;   // how many of the likeliest tokens; -1: none are
                           // asked for
  bool echo = false;       // the prompt belongs to the text
  bool only_echo = false;  // no new token at all (max_tokens: 0)
  bool stream = false;
  bool stream_usage = false;  // counts tokens in a last event

  size_t prompt_count() const { return prompts.size() + prompt_ids.size(); }
};

// `status`, an error, with the request's field that it is about, and OpenAI's
// code for it.
absl::Status AboutField(absl::Status status, absl::string_view field,
                        absl::string_view code);
// These two; empty if the status has none.
ErrorDetails DetailsOf(const absl::Status& status);

// INVALID_ARGUMENT, naming the field, for what isn't JSON, has another type
// than it should, or asks for what can't be done here: nothing but what says
// nothing of the text ("user") is passed over.
absl::StatusOr<CompletionRequest> ParseCompletionRequest(
    Api api, absl::string_view body);

}  // namespace capstan

#endif  // CAPSTAN_DESK_SERVE_OPENAI_REQUEST_H_
