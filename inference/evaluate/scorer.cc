// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/scorer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "plugins/sdk/lib/prompt_batch.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::evaluate {
namespace {

// Adds token `id`'s score by log-probabilities [V].
void AddToken(absl::Span<const float> log_p, int64_t id, Score* score) {
  score->log_likelihood += log_p[id];
  const auto best = std::max_element(log_p.begin(), log_p.end());
  score->greedy &= best - log_p.begin() == id;
}

// Scores the `which`th continuation of each request that has one.
void ScoreNext(absl::Span<const EncodedRequest> requests, size_t which,
               PromptBatch* batch, int64_t chunk, UnitRunner& runner,
               std::vector<std::vector<Score>>* scores) {
  int64_t longest = 0;
  for (const EncodedRequest& request : requests) {
    if (which >= request.continuations.size()) continue;
    longest = std::max(
        longest, static_cast<int64_t>(request.continuations[which].size()));
  }
  // What stands at position t of the batch predicts the continuation's token t.
  const int64_t rows = batch->rows();
  const at::Tensor tokens = at::zeros({rows, longest}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const EncodedRequest& request = requests[row];
    int64_t* const to = tokens.mutable_data_ptr<int64_t>() + row * longest;
    if (longest > 0) to[0] = request.context.back();
    if (which >= request.continuations.size()) continue;
    const std::vector<int64_t>& ids = request.continuations[which];
    if (!ids.empty()) std::copy(ids.begin(), ids.end() - 1, to + 1);
  }
  for (int64_t begin = 0; begin < longest; begin += chunk) {
    const int64_t length = std::min(chunk, longest - begin);
    const at::Tensor log_p = at::log_softmax(
        batch->Append(tokens.narrow(1, begin, length).contiguous(), runner),
        -1);
    const size_t vocab = static_cast<size_t>(log_p.size(2));
    for (int64_t row = 0; row < rows; ++row) {
      if (which >= requests[row].continuations.size()) continue;
      const std::vector<int64_t>& ids = requests[row].continuations[which];
      const int64_t end =
          std::min(begin + length, static_cast<int64_t>(ids.size()));
      for (int64_t t = begin; t < end; ++t) {
        AddToken({log_p.const_data_ptr<float>() +
                      (row * length + t - begin) * static_cast<int64_t>(vocab),
                  vocab},
                 ids[t], &(*scores)[row][which]);
      }
    }
  }
}

// What the tokenizer puts before a text, unless that begins with it.
std::vector<int64_t> BeginTokens(const Tokenizer& tokenizer,
                                 absl::string_view text) {
  constexpr int64_t kText = -1;
  std::vector<int64_t> ids = {kText};
  tokenizer.AddEnds(&ids);
  ids.erase(std::find(ids.begin(), ids.end(), kText), ids.end());
  const std::string spelt = tokenizer.Decode(ids);
  if (!spelt.empty() && absl::StartsWith(text, spelt)) ids.clear();
  return ids;
}

// What stands before a text without a context.
absl::StatusOr<int64_t> FirstToken(const Tokenizer& tokenizer) {
  const Tokenizer::SpecialIds special = tokenizer.special_ids();
  const int64_t first = special.bos >= 0 ? special.bos : special.eos;
  if (first >= 0) return first;
  return absl::FailedPreconditionError(
      "the context is empty, and the tokenizer has no begin token");
}

// Without a cache.
Score ScoreAlone(TokenModel* model, const EncodedRequest& request,
                 const std::vector<int64_t>& continuation, UnitRunner& runner) {
  Score score;
  if (continuation.empty()) return score;
  std::vector<int64_t> text = request.context;
  text.insert(text.end(), continuation.begin(), continuation.end() - 1);
  TokenInput input;
  input.tokens = at::tensor(text, at::kLong).unsqueeze(0);
  const at::Tensor log_p =
      at::log_softmax(
          model->Logits(input, runner)
              .select(0, 0)
              .narrow(0, static_cast<int64_t>(request.context.size()) - 1,
                      static_cast<int64_t>(continuation.size()))
              .to(at::kFloat)
              .cpu(),
          -1)
          .contiguous();
  const size_t vocab = static_cast<size_t>(log_p.size(1));
  for (size_t t = 0; t < continuation.size(); ++t) {
    AddToken({log_p.const_data_ptr<float>() + t * vocab, vocab},
             continuation[t], &score);
  }
  return score;
}

}  // namespace

absl::StatusOr<EncodedRequest> EncodeRequest(
    const Tokenizer& tokenizer, std::string context,
    const std::vector<std::string>& continuations, int64_t max_positions) {
  EncodedRequest request;
  const size_t kept = absl::StripTrailingAsciiWhitespace(context).size();
  const std::string space = context.substr(kept);
  if (!continuations.empty()) context.resize(kept);
  CAPSTAN_RETURN_IF_ERROR(CheckKnown(tokenizer, context));
  request.context = tokenizer.Encode(context);
  const size_t known = request.context.size();
  const std::vector<int64_t> begin = BeginTokens(tokenizer, context);
  int64_t longest = 0;
  for (const std::string& continuation : continuations) {
    const std::string text = absl::StrCat(context, space, continuation);
    CAPSTAN_RETURN_IF_ERROR(CheckKnown(tokenizer, text));
    std::vector<int64_t> ids = tokenizer.Encode(text);
    ids.erase(ids.begin(), ids.begin() + std::min(known, ids.size()));
    longest = std::max(longest, static_cast<int64_t>(ids.size()));
    request.continuations.push_back(std::move(ids));
  }
  if (known > 0) {
    request.context.insert(request.context.begin(), begin.begin(), begin.end());
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t first, FirstToken(tokenizer));
    request.context = {first};
  }
  // The last token is predicted, but not read.
  const int64_t room = max_positions + 1 - std::max<int64_t>(longest, 1);
  if (room < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an answer has ", longest, " tokens, the model has room for ",
        max_positions, " behind a context: shorten the answer"));
  }
  std::vector<int64_t>& ids = request.context;
  if (static_cast<int64_t>(ids.size()) > room) {
    ids.erase(ids.begin(), ids.end() - room);
  }
  return request;
}

absl::StatusOr<std::vector<EncodedRequest>> EncodeWindows(
    const Tokenizer& tokenizer, const std::string& text,
    int64_t max_positions) {
  std::vector<EncodedRequest> windows;
  CAPSTAN_RETURN_IF_ERROR(CheckKnown(tokenizer, text));
  std::vector<int64_t> ids = tokenizer.Encode(text);
  const std::vector<int64_t> begin = BeginTokens(tokenizer, text);
  ids.insert(ids.begin(), begin.begin(), begin.end());
  if (ids.empty()) return windows;
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t first, FirstToken(tokenizer));
  const int64_t count = static_cast<int64_t>(ids.size());
  for (int64_t at = 0; at < count;) {
    // Later windows are filled up with tokens that are known already.
    const int64_t end = std::min(at + max_positions, count);
    EncodedRequest window;
    if (at == 0) {
      window.context = {first};
    } else {
      window.context.assign(ids.begin() + end - max_positions - 1,
                            ids.begin() + at);
    }
    window.continuations.emplace_back(ids.begin() + at, ids.begin() + end);
    windows.push_back(std::move(window));
    at = end;
  }
  return windows;
}

absl::StatusOr<std::vector<std::vector<Score>>> ScoreContinuations(
    TokenModel* model, absl::Span<const EncodedRequest> requests,
    UnitRunner& runner) {
  at::NoGradGuard no_grad;
  std::vector<std::vector<Score>> scores;
  std::vector<absl::Span<const int64_t>> known;
  size_t most = 0;
  int64_t longest = 1, context = 0;
  for (const EncodedRequest& request : requests) {
    scores.emplace_back(request.continuations.size());
    most = std::max(most, request.continuations.size());
    known.push_back(
        absl::MakeConstSpan(request.context).first(request.context.size() - 1));
    context = std::max(context, static_cast<int64_t>(known.back().size()));
    for (const std::vector<int64_t>& ids : request.continuations) {
      longest = std::max(longest, static_cast<int64_t>(ids.size()));
    }
  }
  if (requests.empty()) return scores;
  if (requests.size() > 1 && context + longest > model->max_positions()) {
    // A long context and another one's long answer: each alone has room.
    const size_t half = requests.size() / 2;
    CAPSTAN_ASSIGN_OR_RETURN(
        scores, ScoreContinuations(model, requests.subspan(0, half), runner));
    CAPSTAN_ASSIGN_OR_RETURN(
        auto rest, ScoreContinuations(model, requests.subspan(half), runner));
    std::move(rest.begin(), rest.end(), std::back_inserter(scores));
    return scores;
  }
  absl::StatusOr<std::unique_ptr<PromptBatch>> batch =
      PromptBatch::Create(model, known, longest, runner);
  if (absl::IsUnimplemented(batch.status())) {
    for (size_t i = 0; i < requests.size(); ++i) {
      for (size_t j = 0; j < scores[i].size(); ++j) {
        scores[i][j] = ScoreAlone(model, requests[i],
                                  requests[i].continuations[j], runner);
      }
    }
    return scores;
  }
  CAPSTAN_RETURN_IF_ERROR(batch.status());
  const int64_t chunk = LogitsChunk(*model, (*batch)->rows());
  for (size_t which = 0; which < most; ++which) {
    if (which > 0) (*batch)->Rewind();
    ScoreNext(requests, which, batch->get(), chunk, runner, &scores);
  }
  return scores;
}

}  // namespace capstan::evaluate
