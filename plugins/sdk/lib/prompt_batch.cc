// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/prompt_batch.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/to_host.h"
#include "plugins/sdk/token_model.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan {

int64_t LogitsChunk(const TokenModel& model, int64_t rows) {
  constexpr int64_t kFloats = int64_t{16} << 20;
  return std::max<int64_t>(1, kFloats / (rows * model.vocab_size()));
}

int64_t PromptChunk(const TokenModel& model, int64_t rows) {
  constexpr int64_t kTokens = 1024;
  return model.skips_other_logits() ? std::max<int64_t>(1, kTokens / rows)
                                    : LogitsChunk(model, rows);
}

absl::StatusOr<std::unique_ptr<PromptBatch>> PromptBatch::Create(
    TokenModel* model, absl::Span<const absl::Span<const int64_t>> prompts,
    int64_t more, UnitRunner& runner) {
  CHECK(!prompts.empty());
  int64_t longest = 0;
  for (const absl::Span<const int64_t> prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<KvCache> cache,
      model->NewCache(static_cast<int64_t>(prompts.size()), longest + more));
  auto* const batched = cache->batched();
  if (batched == nullptr) {
    return absl::UnimplementedError(
        "this model can't continue several texts at once");
  }
  std::unique_ptr<PromptBatch> batch(
      new PromptBatch(model, std::move(cache), batched));
  batch->Prefill(prompts, runner);
  return batch;
}

void PromptBatch::Prefill(absl::Span<const absl::Span<const int64_t>> prompts,
                          UnitRunner& runner) {
  int64_t longest = 0;
  for (const absl::Span<const int64_t> prompt : prompts) {
    lengths_.push_back(static_cast<int64_t>(prompt.size()));
    longest = std::max(longest, lengths_.back());
  }
  const at::Tensor tokens = at::zeros({rows(), longest}, at::kLong);
  const at::Tensor positions = at::full({rows(), longest}, -1, at::kLong);
  for (int64_t row = 0; row < rows(); ++row) {
    const int64_t padding = longest - lengths_[row];
    int64_t* const to = tokens.mutable_data_ptr<int64_t>() + row * longest;
    int64_t* const at = positions.mutable_data_ptr<int64_t>() + row * longest;
    for (int64_t i = 0; i < lengths_[row]; ++i) {
      to[padding + i] = prompts[row][i];
      at[padding + i] = i;
    }
  }
  std::vector<int64_t> expected = lengths_;
  for (int64_t& length : expected) ++length;  // with Append's first token
  batched_->ExpectLengths(expected);
  const int64_t chunk = PromptChunk(*model_, rows());
  for (int64_t begin = 0; begin < longest; begin += chunk) {
    const int64_t length = std::min(chunk, longest - begin);
    TokenInput input;
    input.tokens = tokens.narrow(1, begin, length).contiguous();
    input.positions = positions.narrow(1, begin, length).contiguous();
    input.cache = cache_.get();
    model_->LastLogits(input, runner);
  }
  prefilled_ = longest;
}

at::Tensor PromptBatch::Append(const at::Tensor& tokens, UnitRunner& runner) {
  const int64_t length = tokens.size(1);
  TokenInput input;
  input.tokens = tokens;
  input.positions =
      at::add(at::tensor(lengths_, at::kLong).unsqueeze(1),
              at::arange(appended_, appended_ + length, at::kLong));
  input.cache = cache_.get();
  appended_ += length;
  return ToHost(model_->Logits(input, runner).to(at::kFloat)).contiguous();
}

void PromptBatch::Rewind() {
  batched_->Rewind(prefilled_);
  appended_ = 0;
}

void PromptBatch::KeepRows(const std::vector<int64_t>& rows) {
  batched_->KeepRows(rows);
  std::vector<int64_t> lengths;
  for (const int64_t row : rows) lengths.push_back(lengths_[row]);
  lengths_ = std::move(lengths);
}

}  // namespace capstan
