// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/bound_scorer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "base/status.h"

namespace capstan::evaluate {
namespace {

// Masks whose numbers are spread evenly.
constexpr int64_t kRound = 16;

// Of float32 logits [V].
double LogProbability(absl::Span<const float> logits, int64_t token) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - most));
  return static_cast<double>(logits[token] - most) - std::log(sum);
}

// A context with one of its continuations.
class BoundEstimate {
 public:
  BoundEstimate(TokenModel* model, const std::vector<int64_t>& context,
                const std::vector<int64_t>& continuation, int64_t most_logits,
                UnitRunner& runner)
      : model_(model),
        most_logits_(most_logits),
        text_(context),
        begin_(static_cast<int64_t>(context.size())),
        length_(static_cast<int64_t>(continuation.size())),
        runner_(runner) {
    text_.insert(text_.end(), continuation.begin(), continuation.end());
  }

  double Bound(int64_t samples, uint64_t key) {
    double sum = 0.0;
    for (int64_t done = 0; done < samples; done += kRound) {
      sum += Round(std::min(kRound, samples - done), key, done);
    }
    return -sum / static_cast<double>(samples);
  }

  bool Greedy() {
    std::vector<int64_t> text = text_;
    std::fill(text.begin() + begin_, text.end(), model_->mask_token());
    for (int64_t left = length_; left > 0; --left) {
      const at::Tensor logits = Logits(absl::MakeConstSpan(&text, 1));
      double surest = -std::numeric_limits<double>::infinity();
      int64_t place = begin_, token = 0;
      for (int64_t i = begin_; i < begin_ + length_; ++i) {
        if (text[i] != model_->mask_token()) continue;
        const absl::Span<const float> of = LogitsAt(logits, 0, i);
        const int64_t likeliest =
            std::max_element(of.begin(), of.end()) - of.begin();
        const double sure = LogProbability(of, likeliest);
        if (sure <= surest) continue;
        surest = sure;
        place = i;
        token = likeliest;
      }
      if (token != text_[place]) return false;
      text[place] = token;
    }
    return true;
  }

 private:
  // The sum of `count` samples.
  double Round(int64_t count, uint64_t key, int64_t done) {
    const uint64_t at = static_cast<uint64_t>(done);
    const auto first =
        static_cast<int64_t>(RandomBelow(RandomKey(key, "first"), at, length_));
    std::vector<std::vector<int64_t>> texts(count, text_);
    std::vector<int64_t> masked(count);
    for (int64_t row = 0; row < count; ++row) {
      masked[row] = (first + row * length_ / count) % length_ + 1;
      // The first of a permutation are a random set.
      const uint64_t order =
          RandomKey(key + at + static_cast<uint64_t>(row), "order");
      for (int64_t i = 0; i < masked[row]; ++i) {
        texts[row][begin_ + PermutedIndex(order, i, length_)] =
            model_->mask_token();
      }
    }
    const int64_t at_once = std::max<int64_t>(
        1, most_logits_ / ((begin_ + length_) * model_->vocab_size()));
    at::Tensor logits;
    double sum = 0.0;
    for (int64_t row = 0; row < count; ++row) {
      if (row % at_once == 0) {
        logits = at::Tensor();  // before there are more
        logits = Logits(absl::MakeConstSpan(texts).subspan(row, at_once));
      }
      double of_row = 0.0;
      for (int64_t i = begin_; i < begin_ + length_; ++i) {
        if (texts[row][i] != text_[i]) {
          of_row -=
              LogProbability(LogitsAt(logits, row % at_once, i), text_[i]);
        }
      }
      sum += of_row * static_cast<double>(length_) /
             static_cast<double>(masked[row]);
    }
    return sum;
  }

  // float32 [rows, length of the text, V] on the CPU.
  at::Tensor Logits(absl::Span<const std::vector<int64_t>> texts) {
    TokenInput input;
    input.tokens = at::empty(
        {static_cast<int64_t>(texts.size()), begin_ + length_}, at::kLong);
    int64_t* out = input.tokens.mutable_data_ptr<int64_t>();
    for (const std::vector<int64_t>& text : texts) {
      out = std::copy(text.begin(), text.end(), out);
    }
    return model_->Logits(input, runner_).to(at::kFloat).cpu().contiguous();
  }

  absl::Span<const float> LogitsAt(const at::Tensor& logits, int64_t row,
                                   int64_t position) const {
    const int64_t vocab = logits.size(2);
    return {logits.const_data_ptr<float>() +
                (row * logits.size(1) + position) * vocab,
            static_cast<size_t>(vocab)};
  }

  TokenModel* const model_;
  const int64_t most_logits_;
  std::vector<int64_t> text_;
  const int64_t begin_;   // of the continuation
  const int64_t length_;  // of the continuation
  UnitRunner& runner_;
};

}  // namespace

absl::StatusOr<std::vector<std::vector<Score>>> ScoreByBound(
    TokenModel* model, absl::Span<const EncodedRequest> requests,
    const BoundSettings& settings, UnitRunner& runner) {
  if (model->mask_token() < 0) {
    return absl::FailedPreconditionError(
        "the model has no mask token: the likelihood of a text can't be "
        "bounded");
  }
  at::AutoGradMode no_gradients(false);
  const uint64_t key = RandomKey(settings.seed, "likelihood bound");
  std::vector<std::vector<Score>> scores;
  for (const EncodedRequest& request : requests) {
    scores.emplace_back();
    for (const std::vector<int64_t>& continuation : request.continuations) {
      Score score;
      // An empty answer is certain, as in ScoreContinuations.
      if (!continuation.empty()) {
        BoundEstimate estimate(model, request.context, continuation,
                               settings.most_logits, runner);
        score.log_likelihood = estimate.Bound(settings.samples, key);
        score.greedy = settings.greedy && estimate.Greedy();
      }
      scores.back().push_back(score);
    }
  }
  return scores;
}

}  // namespace capstan::evaluate
