// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/masked_diffusion/block_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan::masked_diffusion {

absl::StatusOr<std::unique_ptr<BlockCache>> BlockCache::Create(
    TokenModel* model, const SamplerOptions& options, int64_t length) {
  if (options.cache == Config::NONE || options.cache_refresh == 1) {
    return std::unique_ptr<BlockCache>();
  }
  auto kept = model->NewCache(options.cfg_scale > 0.0 ? 2 : 1, length);
  if (!kept.ok()) {
    return FieldError("cache", absl::StrCat("must be NONE for this model: ",
                                            kept.status().message()));
  }
  auto made = std::unique_ptr<BlockCache>(
      new BlockCache(model, *std::move(kept), options));
  if (made->rows_ == nullptr) {
    return FieldError("cache",
                      "must be NONE for this model, whose cache can't forget "
                      "a part of what it holds");
  }
  return made;
}

void BlockCache::Begin(int64_t begin, int64_t end) {
  begin_ = begin;
  end_ = end;
  step_ = 0;
}

at::Tensor BlockCache::BlockLogits(const at::Tensor& tokens,
                                   UnitRunner& runner) {
  const int64_t batch = tokens.size(0), length = tokens.size(1);
  const bool anew = refresh_ == 0 ? step_ == 0 : step_ % refresh_ == 0;
  ++step_;
  // What is kept comes first, then the block.
  at::Tensor order = at::arange(length, at::kLong);
  int64_t kept = begin_;
  if (dual_) {
    order = at::cat({order.narrow(0, 0, begin_),
                     order.narrow(0, end_, length - end_),
                     order.narrow(0, begin_, end_ - begin_)});
    kept = length - (end_ - begin_);
  }
  const int64_t first = anew ? 0 : kept;
  order = order.narrow(0, first, length - first);
  rows_->Rewind(first);
  TokenInput input;
  input.tokens = tokens.index_select(1, order);
  input.positions = order.repeat({batch, 1});
  input.cache = cache_.get();
  return model_->Logits(input, runner).narrow(1, kept - first, end_ - begin_);
}

}  // namespace capstan::masked_diffusion
