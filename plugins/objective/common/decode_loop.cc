// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/decode_loop.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/to_host.h"
#include "plugins/sdk/lib/prompt_batch.h"
#include "plugins/sdk/token_model.h"

namespace capstan {
namespace {

absl::Status Stopped() { return absl::CancelledError("sampling was stopped"); }

class Together final : public Continuation {
 public:
  explicit Together(std::unique_ptr<PromptBatch> batch)
      : batch_(std::move(batch)) {}

  absl::StatusOr<at::Tensor> NextLogits(Texts& texts,
                                        const std::function<bool()>&,
                                        UnitRunner& runner) override {
    const at::Tensor last =
        at::empty({static_cast<int64_t>(texts.size()), 1}, at::kLong);
    for (size_t row = 0; row < texts.size(); ++row) {
      last.mutable_data_ptr<int64_t>()[row] = texts[row].back();
    }
    return batch_->Append(last, runner).select(1, 0);
  }
  void KeepRows(const std::vector<int64_t>& rows) override {
    batch_->KeepRows(rows);
  }

 private:
  const std::unique_ptr<PromptBatch> batch_;
};

}  // namespace

void CausalContext::Begin(TokenModel* model, absl::Span<const int64_t> prompt,
                          int64_t longest) {
  // A kept cache, which grows by need, may serve longer texts than this one.
  capacity_ = kept_ ? model->max_positions()
                    : std::min(longest, model->max_positions());
  BatchedCache* const batched = cache_ == nullptr ? nullptr : cache_->batched();
  if (!kept_ || model != model_ || batched == nullptr || begin_ > 0 ||
      !cache_->FitsLength(static_cast<int64_t>(prompt.size()))) {
    cache_.reset();
    cached_.clear();
    begin_ = 0;
  } else {
    // The prompt's last token is computed in any case, for its logits.
    const size_t most = std::min(cached_.size(), prompt.size() - 1);
    const auto end =
        std::mismatch(cached_.begin(), cached_.begin() + most, prompt.begin());
    cached_.erase(end.first, cached_.end());
    batched->Rewind(static_cast<int64_t>(cached_.size()));
  }
  model_ = model;
}

absl::StatusOr<at::Tensor> CausalContext::NextLogits(
    Texts& texts, const std::function<bool()>& stop, UnitRunner& runner) {
  const std::vector<int64_t>& text = texts[0];
  const int64_t length = static_cast<int64_t>(text.size());
  CAPSTAN_RETURN_IF_ERROR(Prepare(length));
  // Everything not in the cache: the prompt, later one token at a time.
  at::Tensor logits;
  while (Missing(length) > 0) {
    if (Missing(length) > kPromptTokens && stop()) return Stopped();
    logits = AddPiece(text, /*all=*/false, runner);
  }
  return HostLogits(logits);
}

absl::Status CausalContext::Prepare(int64_t length) {
  if (cache_ == nullptr || length - begin_ > capacity_) {
    if (cache_ != nullptr) begin_ = length - (capacity_ + 1) / 2;
    cached_.clear();
    CAPSTAN_ASSIGN_OR_RETURN(cache_, model_->NewCache(1, capacity_));
  }
  // In pieces, at the positions of the whole.
  if (BatchedCache* const batched = cache_->batched()) {
    batched->ExpectLengths({length - begin_});
  }
  return absl::OkStatus();
}

int64_t CausalContext::Missing(int64_t length) const {
  return length - begin_ - cache_->length();
}

at::Tensor CausalContext::AddPiece(absl::Span<const int64_t> text, bool all,
                                   UnitRunner& runner) {
  const int64_t missing = Missing(static_cast<int64_t>(text.size()));
  const int64_t count = std::min(
      missing, all ? std::min(kPromptTokens, LogitsChunk(*model_, /*rows=*/1))
                   : kPromptTokens);
  const absl::Span<const int64_t> piece =
      text.subspan(text.size() - missing, count);
  // The model only reads them.
  auto* const tokens = const_cast<int64_t*>(piece.data());
  TokenInput input;
  input.tokens = at::from_blob(tokens, {1, count}, at::kLong);
  input.cache = cache_.get();
  const at::Tensor logits =
      all ? model_->Logits(input, runner) : model_->LastLogits(input, runner);
  cached_.insert(cached_.end(), piece.begin(), piece.end());
  return logits.view({all ? count : 1, -1});
}

std::unique_ptr<KvCache> CausalContext::Release() {
  cached_.clear();
  return std::move(cache_);
}

at::Tensor HostLogits(const at::Tensor& logits) {
  return ToHost(logits.to(at::kFloat)).contiguous();
}

absl::StatusOr<std::unique_ptr<Continuation>> ContinueTogether(
    TokenModel* model, const Texts& texts, int64_t wanted, UnitRunner& runner) {
  // The last token of each is what the first step appends.
  std::vector<absl::Span<const int64_t>> known;
  for (const std::vector<int64_t>& text : texts) {
    known.push_back(absl::MakeConstSpan(text).first(text.size() - 1));
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<PromptBatch> batch,
                           PromptBatch::Create(model, known, wanted, runner));
  return std::unique_ptr<Continuation>(new Together(std::move(batch)));
}

absl::Status DecodeLoop(Continuation* model, int64_t wanted,
                        const std::function<bool()>& stop, UnitRunner& runner,
                        Texts* texts, const ExtendTexts& extend) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < wanted && !texts->empty(); ++i) {
    if (stop()) return Stopped();
    CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor logits,
                             model->NextLogits(*texts, stop, runner));
    rows.clear();
    CAPSTAN_RETURN_IF_ERROR(extend(logits, &rows));
    if (!rows.empty()) model->KeepRows(rows);
  }
  return absl::OkStatus();
}

}  // namespace capstan
