// SPDX-License-Identifier: Apache-2.0
#include "inference/engine/engine_text.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

EngineText::EngineText(EngineRequest request, size_t index,
                       const EngineModel& model,
                       std::shared_ptr<AnswerQueue> queue)
    : request_(std::move(request)),
      index_(index),
      model_(model),
      queue_(std::move(queue)),
      ends_(EndTokensOf(*model.model->token_model())) {
  const std::vector<int64_t>& stops = request_.sample.stop_tokens;
  ends_.insert(ends_.end(), stops.begin(), stops.end());
}

SampleOptions EngineText::Options() {
  SampleOptions options = request_.sample;
  options.on_token = [this](int64_t token) { NoteToken(token); };
  options.ended = [this](absl::Span<const int64_t>) { return stopped_; };
  options.stop = [this] { return cancelled(); };
  return options;
}

BatchedText EngineText::Batched(std::function<void(const absl::Status&)> done) {
  BatchedText text;
  text.prompt = request_.prompt;
  text.options = Options();
  text.prompt_logits = request_.prompt_logprobs;
  if (request_.logprobs >= 0) {
    text.on_logits = [this](size_t place, absl::Span<const float> logits) {
      NoteLogits(place, logits);
    };
  }
  text.done = std::move(done);
  return text;
}

absl::Status EngineText::WriteAlone(const std::function<bool()>& stop) {
  if (request_.logprobs >= 0) {
    return absl::InvalidArgumentError(
        "the model writes one text at a time, without logprobs");
  }
  SampleOptions options = Options();
  options.stop = [this, &stop] { return stop() || cancelled(); };
  const size_t prompt = request_.prompt.size();
  const auto add = [&](absl::Span<const int64_t> text) {
    AnswerPiece piece;
    piece.request = index_;
    piece.whole.assign(text.begin() + prompt, text.end());
    queue_->Add(std::move(piece));
  };
  const bool in_order = model_.model->token_model()->causal();
  if (!in_order) options.on_text = add;
  PlainRunner runner;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> text,
      model_.objective->Sample(*model_.model, request_.prompt, options,
                               runner));
  if (in_order) return absl::OkStatus();
  add(text);
  const auto end = std::find_first_of(text.begin() + prompt, text.end(),
                                      ends_.begin(), ends_.end());
  stopped_ = end != text.end();
  new_tokens_ = end - text.begin() - static_cast<int64_t>(prompt);
  return absl::OkStatus();
}

void EngineText::Finish(absl::Status status) {
  // Weights may lie in files that change.
  status.Update(MappedFile::CheckAll());
  AnswerPiece piece;
  piece.request = index_;
  piece.last = true;
  piece.status = std::move(status);
  piece.stopped = stopped_;
  queue_->Add(std::move(piece));
}

void EngineText::NoteLogits(size_t place, absl::Span<const float> logits) {
  if (place < request_.prompt.size()) {
    prompt_.push_back(TokenOf(request_.prompt[place], logits));
  } else {
    logits_.assign(logits.begin(), logits.end());
  }
}

void EngineText::NoteToken(int64_t token) {
  AnswerPiece piece;
  piece.request = index_;
  piece.prompt = std::exchange(prompt_, {});
  piece.tokens.push_back(TokenOf(token, logits_));
  ++new_tokens_;
  if (IsEnd(token)) {
    stopped_ = request_.sample.stop_at_eos;
  } else if (!request_.stops.empty()) {
    written_ += model_.tokenizer->Decode(absl::MakeConstSpan(&token, 1));
    stopped_ = stopped_ || request_.stops.EndIn(written_);
    const size_t kept = std::min(written_.size(), request_.stops.longest() - 1);
    written_.erase(0, written_.size() - kept);
  }
  queue_->Add(std::move(piece));
}

AnswerToken EngineText::TokenOf(int64_t token,
                                absl::Span<const float> logits) const {
  AnswerToken result;
  result.token = token;
  if (logits.empty()) return result;
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit - most));
  }
  const double all = most + std::log(sum);
  const auto logprob = [&](int64_t of) {
    return static_cast<float>(logits[of] - all);
  };
  result.logprob = logprob(token);
  const size_t wanted = static_cast<size_t>(request_.logprobs);
  std::vector<std::pair<int64_t, float>>& best = result.likeliest;
  for (size_t of = 0; of < logits.size() && wanted > 0; ++of) {
    const float logit = logits[of];
    if (best.size() == wanted && !(logit > best.back().second)) continue;
    const auto before = [](float a, const std::pair<int64_t, float>& b) {
      return a > b.second;
    };
    best.insert(std::upper_bound(best.begin(), best.end(), logit, before),
                {static_cast<int64_t>(of), logit});
    if (best.size() > wanted) best.pop_back();
  }
  for (auto& [of, value] : best) value = logprob(of);
  return result;
}

bool EngineText::IsEnd(int64_t token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

}  // namespace capstan
