// SPDX-License-Identifier: Apache-2.0
//
// A request at an engine: what the model's callbacks say of its text becomes
// pieces of the answer.
#ifndef CAPSTAN_INFERENCE_ENGINE_ENGINE_TEXT_H_
#define CAPSTAN_INFERENCE_ENGINE_ENGINE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inference/decode/stop_strings.h"
#include "inference/engine/answers.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/text_batch.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// One that an engine has; all outlive the engine.
struct EngineModel {
  Model* model = nullptr;  // a token model
  Objective* objective = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: there are no stop strings
};

struct EngineRequest {
  size_t model = 0;  // of the engine's
  std::vector<int64_t> prompt;
  // Without callbacks. max_new_tokens 0: as the objective says.
  SampleOptions sample;
  StopStrings stops;
  // How many of the likeliest tokens AnswerTokens have; negative: not even a
  // logprob. For models that write in order.
  int64_t logprobs = -1;
  bool prompt_logprobs = false;
};

// Used by the engine's thread, but for its construction.
class EngineText {
 public:
  // `index`: AnswerPiece::request.
  EngineText(EngineRequest request, size_t index, const EngineModel& model,
             std::shared_ptr<AnswerQueue> queue);

  const EngineRequest& request() const { return request_; }
  // Tokens of the prompt, and that it may get.
  int64_t longest() const {
    return static_cast<int64_t>(request_.prompt.size()) +
           request_.sample.max_new_tokens;
  }
  int64_t new_tokens() const { return new_tokens_; }
  bool cancelled() const { return queue_->cancelled(); }
  // Whether both came with one Engine::Submit.
  bool IsBeside(const EngineText& other) const {
    return queue_ == other.queue_;
  }

  // For TextBatch::Add. This outlives the text there.
  BatchedText Batched(std::function<void(const absl::Status&)> done);
  // Objective::Sample, which asks `stop`, too.
  absl::Status WriteAlone(const std::function<bool()>& stop);

  // Adds the last piece.
  void Finish(absl::Status status);

 private:
  SampleOptions Options();
  void NoteLogits(size_t place, absl::Span<const float> logits);
  void NoteToken(int64_t token);
  AnswerToken TokenOf(int64_t token, absl::Span<const float> logits) const;
  bool IsEnd(int64_t token) const;

  const EngineRequest request_;
  const size_t index_;
  const EngineModel model_;
  const std::shared_ptr<AnswerQueue> queue_;
  std::vector<int64_t> ends_;
  std::vector<float> logits_;  // of the next token, if they are asked for
  std::vector<AnswerToken> prompt_;
  std::string written_;  // its end, in which a stop string may begin
  int64_t new_tokens_ = 0;
  bool stopped_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_ENGINE_ENGINE_TEXT_H_
