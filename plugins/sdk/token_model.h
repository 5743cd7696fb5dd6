// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_TOKEN_MODEL_H_
#define CAPSTAN_PLUGINS_SDK_TOKEN_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

// Keys and values of past positions, for generation one token at a time.
class KvCache {
 public:
  virtual ~KvCache();
  // Positions that are filled.
  virtual int64_t length() const = 0;
};

// What a TokenModel computes on.
struct TokenInput {
  at::Tensor tokens;  // [B, T] int64
  // If set, tokens follow the cache's positions, and their keys and values are
  // added to it. Without gradients only.
  KvCache* cache = nullptr;
  // [B, T] int64, or undefined: 0, 1, .. in each row. The position of each
  // token in its document; a row's documents follow each other, and a
  // token sees those of its own document, in a causal model up to itself. Not
  // with a cache.
  at::Tensor positions;
  // [B] int64, or undefined: keys for dropout (dataset.h). Only in training.
  at::Tensor sample_positions;
};

// What the logits of each position are held against.
struct TokenTargets {
  // [B, T] int64: the tokens that are right there (for next-token prediction
  // shifted already); negative: none.
  at::Tensor tokens;
  // [B, T] float32: factors of the positions' losses; undefined: all 1.
  at::Tensor weights;
};

// A model that maps token sequences to logits over a vocabulary.
class TokenModel {
 public:
  virtual ~TokenModel();

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;

  // [B, T, V], in the compute dtype.
  virtual at::Tensor Logits(const TokenInput& input, UnitRunner& runner) = 0;

  // The sum of weight * -log softmax(logits)[target] over the positions that
  // have a target, as a float32 scalar with gradient (none to the weights). A
  // model may fuse its head with the loss here, so that the logits of a whole
  // batch never exist.
  virtual at::Tensor CrossEntropySum(const TokenInput& input,
                                     const TokenTargets& targets,
                                     UnitRunner& runner) = 0;

  // Whether a token sees only those before it. Others see the whole text, and
  // have no cache.
  virtual bool causal() const { return true; }

  // An empty cache for `batch` sequences of up to `max_length` positions.
  virtual absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const = 0;

  // The token that ends a text, or -1.
  virtual int64_t eos_token() const { return -1; }
  // The token that stands where another is to be found, or -1.
  virtual int64_t mask_token() const { return -1; }
  // The package of the objective that samples from a folder of this model
  // where no config names one ("capstan.causal_lm"); "": by the name of the
  // architecture (ARCHITECTURE.md).
  virtual std::string sampling_objective() const { return ""; }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TOKEN_MODEL_H_
