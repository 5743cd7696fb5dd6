// SPDX-License-Identifier: Apache-2.0
//
// A fake bidirectional model: it records its inputs, and the test sets its
// logits. Its cache holds nothing.
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_FAKE_MODEL_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_FAKE_MODEL_H_

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/token_model.h"

namespace capstan::masked_diffusion {

class FakeModel final : public IdleModel, public TokenModel {
 public:
  static constexpr int64_t kVocab = 12;
  static constexpr int64_t kMask = 10;
  static constexpr int64_t kEos = 9;

  FakeModel() : IdleModel({}, 0) {}

  TokenModel* token_model() override { return is_token_model ? this : nullptr; }

  int64_t vocab_size() const override { return kVocab; }
  int64_t max_positions() const override { return positions; }
  bool causal() const override { return is_causal; }
  int64_t eos_token() const override { return kEos; }
  int64_t mask_token() const override { return mask; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    if (!has_cache) return absl::UnimplementedError("it has none");
    return std::unique_ptr<KvCache>(new Cache());
  }

  at::Tensor Logits(const TokenInput& asked, UnitRunner&) override {
    inputs.push_back(asked);
    const int64_t batch = asked.tokens.size(0), length = asked.tokens.size(1);
    if (asked.cache != nullptr) {
      static_cast<Cache*>(asked.cache)->filled += length;
    }
    const auto position = [&](int64_t b, int64_t t) {
      return asked.positions.defined() ? asked.positions[b][t].item<int64_t>()
                                       : t;
    };
    const at::Tensor made = at::empty({batch, length, kVocab}, at::kFloat);
    float* out = made.mutable_data_ptr<float>();
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < length; ++t) {
        const int64_t at = position(b, t);
        for (int64_t v = 0; v < kVocab; ++v) *out++ = logit(b, at, v);
      }
    }
    return made;
  }
  // As if all tokens were equally likely: log(kVocab) for each target.
  at::Tensor CrossEntropySum(const TokenInput& asked,
                             const TokenTargets& held_against,
                             UnitRunner&) override {
    inputs.push_back(asked);
    targets.push_back(held_against);
    at::Tensor weights = held_against.weights;
    if (!weights.defined()) {
      weights = at::ones_like(held_against.tokens).to(at::kFloat);
    }
    return (held_against.tokens.ge(0) * weights).sum() * std::log(kVocab);
  }

  bool is_token_model = true;
  bool has_cache = true;
  bool is_causal = false;
  int64_t positions = 32;
  int64_t mask = kMask;
  // For row b, position t, token v.
  std::function<float(int64_t b, int64_t t, int64_t v)> logit =
      [](int64_t, int64_t, int64_t) { return 0.0f; };
  std::vector<TokenInput> inputs;
  std::vector<TokenTargets> targets;

 private:
  struct Cache final : public KvCache, public BatchedCache {
    BatchedCache* batched() override { return this; }
    int64_t length() const override { return filled; }
    void Rewind(int64_t length) override { filled = length; }
    void KeepRows(const std::vector<int64_t>&) override {}
    int64_t filled = 0;
  };
};

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_FAKE_MODEL_H_
