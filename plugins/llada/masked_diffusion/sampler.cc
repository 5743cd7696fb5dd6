// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/masked_diffusion/sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "base/to_host.h"
#include "kernels/to_device.h"
#include "plugins/llada/masked_diffusion/block_cache.h"
#include "plugins/llada/masked_diffusion/noise.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::masked_diffusion {
namespace {

constexpr int64_t kDefaultBlockLength = 128;

// A token for a position, and the model's confidence in it.
struct Choice {
  int64_t position = 0;
  int64_t token = 0;
  double confidence = 0.0;
};

// One run of the sampler.
class Unmasker {
 public:
  Unmasker(TokenModel* model, int64_t mask_token, const SamplerOptions& options,
           UnitRunner* runner, BlockCache* cache,
           const std::vector<int64_t>& prompt, int64_t new_tokens)
      : model_(model),
        mask_token_(mask_token),
        options_(options),
        runner_(runner),
        cache_(cache),
        gumbel_key_(RandomKey(options.seed, "masked_diffusion.gumbel")),
        order_key_(RandomKey(options.seed, "masked_diffusion.remasking")),
        given_(static_cast<int64_t>(prompt.size())),
        text_(prompt) {
    text_.resize(text_.size() + new_tokens, mask_token);
  }

  std::vector<int64_t>& text() { return text_; }

  // Chooses `count` of the masked tokens of [begin, end), or more if the model
  // is sure enough of them; returns how many are left.
  absl::StatusOr<int64_t> Step(int64_t begin, int64_t end, int64_t count) {
    std::vector<int64_t> masked;
    for (int64_t i = begin; i < end; ++i) {
      if (text_[i] == mask_token_) masked.push_back(i);
    }
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<Choice> choices, Choose(masked));
    // Among equals, the first in the text.
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Choice& a, const Choice& b) {
                       return a.confidence > b.confidence;
                     });
    size_t chosen = std::min<size_t>(choices.size(), count);
    const double sure = options_.confidence_threshold > 0.0
                            ? std::log(options_.confidence_threshold)
                            : std::numeric_limits<double>::infinity();
    while (chosen < choices.size() && choices[chosen].confidence >= sure) {
      ++chosen;
    }
    for (size_t i = 0; i < chosen; ++i) {
      text_[choices[i].position] = choices[i].token;
    }
    ++step_;
    return static_cast<int64_t>(choices.size() - chosen);
  }

 private:
  // The logits [n, V] of some positions, float64, guided.
  at::Tensor LogitsAt(const std::vector<int64_t>& positions) {
    const bool guided = options_.cfg_scale > 0.0;
    const auto length = static_cast<int64_t>(text_.size());
    TokenInput input;
    input.tokens = at::empty({guided ? 2 : 1, length}, at::kLong);
    auto* const tokens = input.tokens.mutable_data_ptr<int64_t>();
    std::copy(text_.begin(), text_.end(), tokens);
    if (guided) {
      std::copy(text_.begin(), text_.end(), tokens + length);
      std::fill_n(tokens + length, given_, mask_token_);
    }
    const at::Tensor all = cache_ == nullptr
                               ? model_->Logits(input, *runner_)
                               : cache_->BlockLogits(input.tokens, *runner_);
    const int64_t first = cache_ == nullptr ? 0 : cache_->begin();
    const at::Tensor index = kernels::ToDevice(
        at::tensor(positions, at::kLong) - first, all.device());
    const auto of = [&](int64_t row) {
      return all.select(0, row).index_select(0, index).to(at::kFloat);
    };
    if (!guided) return of(0).to(at::kDouble);
    const at::Tensor free = of(1);
    return (free + (options_.cfg_scale + 1.0) * (of(0) - free)).to(at::kDouble);
  }

  // -log(-log u) [n, V] for the Gumbel-max trick.
  at::Tensor Gumbel(const std::vector<int64_t>& positions,
                    int64_t vocabulary) const {
    const at::Tensor noise = at::empty(
        {static_cast<int64_t>(positions.size()), vocabulary}, at::kDouble);
    double* out = noise.mutable_data_ptr<double>();
    for (int64_t position : positions) {
      for (int64_t v = 0; v < vocabulary; ++v) {
        const double u = Uniform(gumbel_key_, position * vocabulary + v, step_);
        *out++ = -std::log(-std::log(u));
      }
    }
    return noise;
  }

  // Chooses a token for each of `positions`, in order.
  absl::StatusOr<std::vector<Choice>> Choose(
      const std::vector<int64_t>& positions) {
    const at::Tensor logits = LogitsAt(positions);
    // Over the whole vocabulary: confidences are the model's probabilities.
    const at::Tensor norm = at::logsumexp(logits, /*dim=*/{1});
    at::Tensor scores = logits.clone();
    if (options_.temperature > 0.0) {
      // The argmax of exp(logits) / (-log u)^temperature, without its overflow.
      scores +=
          options_.temperature *
          kernels::ToDevice(Gumbel(positions, logits.size(1)), logits.device());
    }
    scores.select(1, mask_token_)
        .fill_(-std::numeric_limits<double>::infinity());
    const at::Tensor tokens = scores.argmax(/*dim=*/1);
    // A row each, for one copy to the host: token ids are exact in float64.
    const at::Tensor rows = ToHost(at::stack(
        {tokens.to(at::kDouble),
         logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - norm, norm}));
    const size_t count = positions.size();
    const double* const chosen = rows.const_data_ptr<double>();
    const double* const sure = chosen + count;
    const double* const norms = sure + count;
    if (!std::all_of(norms, norms + count,
                     [](double x) { return std::isfinite(x); })) {
      return absl::InvalidArgumentError(
          "the model's logits are not finite: nothing can be sampled");
    }
    std::vector<Choice> choices(count);
    for (size_t i = 0; i < count; ++i) {
      choices[i].position = positions[i];
      choices[i].token = static_cast<int64_t>(chosen[i]);
      choices[i].confidence = options_.random_remasking
                                  ? Uniform(order_key_, positions[i], step_)
                                  : sure[i];
    }
    return choices;
  }

  TokenModel* const model_;
  const int64_t mask_token_;
  const SamplerOptions& options_;
  UnitRunner* const runner_;
  BlockCache* const cache_;  // null: none
  const uint64_t gumbel_key_;
  const uint64_t order_key_;
  const int64_t given_;  // tokens of the prompt
  std::vector<int64_t> text_;
  int64_t step_ = 0;
};

}  // namespace

absl::Status CheckSamplerOptions(const SamplerOptions& o) {
  CAPSTAN_RETURN_IF_ERROR(CheckField(o.max_new_tokens > 0, "max_new_tokens",
                                     "greater than 0", o.max_new_tokens));
  CAPSTAN_RETURN_IF_ERROR(CheckField(o.block_length >= 0, "block_length",
                                     "0 or greater", o.block_length));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(o.steps >= 0, "steps", "0 or greater", o.steps));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(o.temperature >= 0.0 && std::isfinite(o.temperature),
                 "temperature", "0 or greater", o.temperature));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(o.cfg_scale >= 0.0 && std::isfinite(o.cfg_scale), "cfg_scale",
                 "0 or greater", o.cfg_scale));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      o.confidence_threshold >= 0.0 && o.confidence_threshold < 1.0,
      "confidence_threshold", "from 0 to less than 1", o.confidence_threshold));
  if (o.confidence_threshold > 0.0 && o.random_remasking) {
    return FieldError("confidence_threshold",
                      "doesn't go with remasking: RANDOM, which doesn't look "
                      "at confidences");
  }
  CAPSTAN_RETURN_IF_ERROR(CheckField(o.cache_refresh.value_or(1) > 0,
                                     "cache_refresh", "greater than 0",
                                     o.cache_refresh.value_or(1)));
  if (o.cache_refresh.has_value() && o.cache == Config::NONE) {
    return FieldError("cache_refresh", "needs cache: PREFIX or DUAL");
  }
  if (o.cache != Config::NONE && o.block_length == 0) {
    return FieldError("block_length",
                      "must be set with a cache, which keeps what is outside a "
                      "block");
  }
  return absl::OkStatus();
}

int64_t Schedule::TokensIn(int64_t step) const {
  return block_length / steps_per_block +
         (step < block_length % steps_per_block ? 1 : 0);
}

absl::StatusOr<Schedule> ScheduleOf(const SamplerOptions& options,
                                    int64_t room) {
  CAPSTAN_RETURN_IF_ERROR(CheckSamplerOptions(options));
  const int64_t wanted = options.max_new_tokens;
  Schedule schedule;
  schedule.block_length = options.block_length;
  if (schedule.block_length == 0) {
    schedule.block_length =
        wanted % kDefaultBlockLength == 0 ? kDefaultBlockLength : wanted;
  }
  if (wanted % schedule.block_length != 0) {
    return FieldError("block_length",
                      absl::StrCat("must divide max_new_tokens, which is ",
                                   wanted, "; it is ", schedule.block_length));
  }
  schedule.blocks = wanted / schedule.block_length;
  const int64_t steps = options.steps > 0 ? options.steps : wanted;
  if (steps % schedule.blocks != 0) {
    return FieldError(
        "steps", absl::StrCat("must be a multiple of the ", schedule.blocks,
                              " blocks of ", schedule.block_length,
                              " tokens, is ", steps));
  }
  schedule.steps_per_block = steps / schedule.blocks;
  schedule.blocks = std::min(schedule.blocks, room / schedule.block_length);
  if (schedule.blocks == 0 && room > 0 && options.block_length == 0) {
    schedule.blocks = 1;
    schedule.block_length = room;
  }
  if (schedule.blocks == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model has positions for ", std::max<int64_t>(room, 0),
        " tokens behind this prompt, a block is ", schedule.block_length,
        ": shorten the prompt, or block_length"));
  }
  return schedule;
}

absl::StatusOr<std::vector<int64_t>> Unmask(
    TokenModel& model, const std::vector<int64_t>& prompt, int64_t mask_token,
    const SamplerOptions& options, const OnText& on_text, UnitRunner& runner) {
  const auto given = static_cast<int64_t>(prompt.size());
  CAPSTAN_ASSIGN_OR_RETURN(const Schedule schedule,
                           ScheduleOf(options, model.max_positions() - given));
  at::AutoGradMode no_gradients(false);
  const int64_t new_tokens = schedule.blocks * schedule.block_length;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<BlockCache> cache,
      BlockCache::Create(&model, options, given + new_tokens));
  Unmasker unmasker(&model, mask_token, options, &runner, cache.get(), prompt,
                    new_tokens);
  std::vector<int64_t>& text = unmasker.text();
  for (int64_t block = 0; block < schedule.blocks; ++block) {
    const int64_t begin = given + block * schedule.block_length;
    const int64_t end = begin + schedule.block_length;
    if (cache != nullptr) cache->Begin(begin, end);
    int64_t left = schedule.block_length;
    for (int64_t step = 0; left > 0 && step < schedule.steps_per_block;
         ++step) {
      const int64_t count = schedule.TokensIn(step);
      if (count == 0) break;  // later ones are 0, too
      if (options.stop()) return absl::CancelledError("sampling was stopped");
      CAPSTAN_ASSIGN_OR_RETURN(left, unmasker.Step(begin, end, count));
      if (on_text) on_text(text);
      // Tokens up to a stop token don't change once they are all chosen.
      const auto first = text.begin() + begin;
      const auto stop = std::find_first_of(first, text.begin() + end,
                                           options.stop_tokens.begin(),
                                           options.stop_tokens.end());
      if (stop != text.begin() + end &&
          std::find(first, stop, mask_token) == stop) {
        text.erase(stop + 1, text.end());
        return std::move(text);
      }
    }
  }
  return std::move(text);
}

}  // namespace capstan::masked_diffusion
