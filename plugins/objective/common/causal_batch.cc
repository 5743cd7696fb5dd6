// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/causal_batch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/objective/common/token_objective.h"

namespace capstan {
namespace {

absl::Span<float> RowOf(const at::Tensor& logits, int64_t row) {
  const int64_t vocabulary = logits.size(1);
  return {logits.mutable_data_ptr<float>() + row * vocabulary,
          static_cast<size_t>(vocabulary)};
}

bool Stopped(const BatchedText& text) {
  return text.options.stop && text.options.stop();
}

void Finish(const BatchedText& text, const absl::Status& status) {
  if (text.done) text.done(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CausalBatch>> CausalBatch::Create(
    TokenModel* model, bool keep_context, SamplerFor sampler_for) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache,
                           model->NewCache(1, 1));
  const auto* const joinable = dynamic_cast<JoinableCache*>(cache.get());
  if (joinable == nullptr || cache->batched() == nullptr) {
    return absl::UnimplementedError("texts can't join this model's cache");
  }
  return absl::WrapUnique(new CausalBatch(
      model, keep_context, joinable->token_bytes(), std::move(sampler_for)));
}

CausalBatch::CausalBatch(TokenModel* model, bool keep_context,
                         int64_t token_bytes, SamplerFor sampler_for)
    : model_(model),
      keep_context_(keep_context),
      token_bytes_(token_bytes),
      sampler_for_(std::move(sampler_for)) {}

absl::Status CausalBatch::Add(BatchedText text) {
  CAPSTAN_RETURN_IF_ERROR(CheckPrompt(*model_, text.prompt));
  const int64_t prompt = static_cast<int64_t>(text.prompt.size());
  const int64_t longest = prompt + text.options.max_new_tokens;
  // The last new token isn't read.
  if (longest - 1 > model_->max_positions()) {
    return absl::OutOfRangeError(absl::StrCat(
        "a prompt of ", prompt, " tokens and ", text.options.max_new_tokens,
        " new ones are more than the model's ", model_->max_positions(),
        " positions"));
  }
  Start start;
  CAPSTAN_ASSIGN_OR_RETURN(start.row.sampler, sampler_for_(text.options));
  start.row.draw = {prompt, EndsOf(*model_, text.options.stop_tokens),
                    text.options.seed};
  start.text = std::move(text.prompt);
  start.row.of = std::move(text);
  starting_.push_back(std::move(start));
  return absl::OkStatus();
}

absl::Status CausalBatch::Step(UnitRunner& runner) {
  const at::AutoGradMode no_gradients(false);
  CAPSTAN_RETURN_IF_ERROR(AddPrompts(runner));
  return AddTokens(runner);
}

absl::Status CausalBatch::AddPrompts(UnitRunner& runner) {
  // One piece of a long prompt, or several short ones.
  for (int64_t tokens = 0; tokens < kPromptTokens && !starting_.empty();) {
    Start& start = starting_.front();
    if (Stopped(start.row.of)) {
      const Start stopped = std::move(start);
      starting_.pop_front();
      Finish(stopped.row.of, absl::CancelledError("sampling was stopped"));
      continue;
    }
    const absl::StatusOr<int64_t> piece = TryPiece(&start, runner);
    if (!piece.ok()) {
      // Its own cache is all that it has changed: the others go on.
      const Start failed = std::move(start);
      starting_.pop_front();
      Finish(failed.row.of, piece.status());
      continue;
    }
    tokens += *piece;
    if (start.logits.defined()) BeginTexts();
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CausalBatch::TryPiece(Start* start,
                                              UnitRunner& runner) {
  absl::StatusOr<int64_t> piece = 0;
  try {
    piece = AddPiece(start, runner);
  } catch (...) {
    piece = CurrentExceptionToStatus();
  }
  if (!absl::IsResourceExhausted(piece.status())) return piece;
  return absl::ResourceExhaustedError(absl::StrCat(
      "there is no memory for a text of ",
      start->row.draw.prompt + start->row.of.options.max_new_tokens,
      " tokens beside the others: try again later, or with a "
      "shorter one"));
}

absl::StatusOr<int64_t> CausalBatch::AddPiece(Start* start,
                                              UnitRunner& runner) {
  const BatchedText& of = start->row.of;
  const int64_t length = static_cast<int64_t>(start->text.size());
  if (start->context == nullptr) {
    // Logits of the whole prompt need all of it anew.
    if (left_ != nullptr && !of.prompt_logits) {
      start->context = std::move(left_);
    } else {
      start->context = std::make_unique<CausalContext>(keep_context_);
    }
    start->context->Begin(model_, start->text,
                          length + of.options.max_new_tokens);
    CAPSTAN_RETURN_IF_ERROR(start->context->Prepare(length));
  }
  const int64_t before = start->context->Missing(length);
  at::Tensor logits =
      start->context->AddPiece(start->text, of.prompt_logits, runner);
  const int64_t after = start->context->Missing(length);
  if (of.prompt_logits && of.on_logits) {
    const at::Tensor all = HostLogits(logits);
    const int64_t followed = all.size(0) - (after == 0 ? 1 : 0);
    for (int64_t i = 0; i < followed; ++i) {
      of.on_logits(static_cast<size_t>(length - before + i + 1), RowOf(all, i));
    }
  }
  if (after > 0) return before - after;
  start->logits = HostLogits(logits.narrow(0, logits.size(0) - 1, 1));
  return before - after;
}

bool CausalBatch::SharesPrompt(const Start& first, const Start& other) {
  const BatchedText& a = first.row.of;
  const BatchedText& b = other.row.of;
  return other.context == nullptr && other.text == first.text &&
         a.options.max_new_tokens == b.options.max_new_tokens &&
         !a.prompt_logits && !b.prompt_logits && !Stopped(b);
}

void CausalBatch::BeginTexts() {
  std::vector<Start> begun;
  begun.push_back(std::move(starting_.front()));
  starting_.pop_front();
  const auto same = std::stable_partition(
      starting_.begin(), starting_.end(), [&begun](const Start& other) {
        return !SharesPrompt(begun.front(), other);
      });
  std::move(same, starting_.end(), std::back_inserter(begun));
  starting_.erase(same, starting_.end());
  const at::Tensor logits = begun.front().logits;
  std::unique_ptr<CausalContext> context = std::move(begun.front().context);
  std::vector<Start> left;
  for (Start& start : begun) {
    if (Extend(RowOf(logits.clone(), 0), &start.row, &start.text)) {
      left.push_back(std::move(start));
    }
  }
  if (!left.empty()) {
    Join(std::move(left), std::move(context));
  } else if (keep_context_) {
    left_ = std::move(context);
  }
}

void CausalBatch::Join(std::vector<Start> starts,
                       std::unique_ptr<CausalContext> context) {
  const bool first = rows_.empty();
  for (Start& start : starts) {
    rows_.push_back(std::move(start.row));
    texts_.push_back(std::move(start.text));
  }
  if (rows_.size() == 1) {
    lone_ = std::move(context);
    return;
  }
  std::unique_ptr<KvCache> cache = context->Release();
  if (starts.size() > 1) {
    cache->batched()->KeepRows(std::vector<int64_t>(starts.size(), 0));
  }
  if (first) {
    cache_ = std::move(cache);
    return;
  }
  if (lone_ != nullptr) cache_ = lone_->Release();
  lone_ = nullptr;
  dynamic_cast<JoinableCache&>(*cache_).Join(*cache);
}

absl::StatusOr<at::Tensor> CausalBatch::NextLogits(UnitRunner& runner) {
  if (lone_ != nullptr) {
    return lone_->NextLogits(
        texts_, [] { return false; }, runner);
  }
  const int64_t rows = static_cast<int64_t>(texts_.size());
  TokenInput input;
  input.tokens = at::empty({rows, 1}, at::kLong);
  input.positions = at::empty({rows, 1}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int64_t>& text = texts_[row];
    input.tokens.mutable_data_ptr<int64_t>()[row] = text.back();
    input.positions.mutable_data_ptr<int64_t>()[row] =
        static_cast<int64_t>(text.size()) - 1;
  }
  input.cache = cache_.get();
  return HostLogits(model_->LastLogits(input, runner).view({rows, -1}));
}

absl::Status CausalBatch::AddTokens(UnitRunner& runner) {
  std::vector<int64_t> left;
  const auto forget = [&] {
    if (left.size() < rows_.size()) KeepRows(left);
  };
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!Stopped(rows_[row].of)) {
      left.push_back(static_cast<int64_t>(row));
    } else {
      Finish(rows_[row].of, absl::CancelledError("sampling was stopped"));
    }
  }
  forget();
  if (rows_.empty()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor logits, NextLogits(runner));
  left.clear();
  for (size_t row = 0; row < rows_.size(); ++row) {
    const int64_t at = static_cast<int64_t>(row);
    if (Extend(RowOf(logits, at), &rows_[row], &texts_[row])) {
      left.push_back(at);
    }
  }
  forget();
  return absl::OkStatus();
}

bool CausalBatch::Extend(absl::Span<float> logits, Row* row,
                         std::vector<int64_t>* text) {
  const SampleOptions& options = row->of.options;
  if (row->of.on_logits) row->of.on_logits(text->size(), logits);
  const absl::StatusOr<int64_t> next =
      NextToken(logits, row->sampler, row->draw, *text);
  if (!next.ok()) {
    Finish(row->of, next.status());
    return false;
  }
  text->push_back(*next);
  if (options.on_token) options.on_token(*next);
  const int64_t made = static_cast<int64_t>(text->size()) - row->draw.prompt;
  if ((options.stop_at_eos && row->draw.EndsWith(*next)) ||
      (options.ended && options.ended(*text)) ||
      made >= options.max_new_tokens) {
    Finish(row->of, absl::OkStatus());
    return false;
  }
  return true;
}

void CausalBatch::KeepRows(const std::vector<int64_t>& rows) {
  if (rows.empty()) {
    if (keep_context_ && lone_ != nullptr) left_ = std::move(lone_);
    lone_ = nullptr;
    cache_ = nullptr;
    rows_.clear();
    texts_.clear();
    return;
  }
  // Those of the end fill the gaps, so that few rows of the cache move.
  std::vector<int64_t> places(rows.size(), -1);
  std::vector<int64_t> moving;
  for (const int64_t row : rows) {
    if (row < static_cast<int64_t>(rows.size())) {
      places[row] = row;
    } else {
      moving.push_back(row);
    }
  }
  for (size_t to = 0; to < places.size(); ++to) {
    if (places[to] >= 0) continue;
    places[to] = moving.back();
    moving.pop_back();
    rows_[to] = std::move(rows_[places[to]]);
    texts_[to] = std::move(texts_[places[to]]);
  }
  rows_.resize(rows.size());
  texts_.resize(rows.size());
  cache_->batched()->KeepRows(places);
}

}  // namespace capstan
