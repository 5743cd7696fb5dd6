// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_TOKEN_MODEL_H_
#define CAPSTAN_PLUGINS_SDK_TOKEN_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

// Keys and values of past positions, for generation token by token.
class KvCache {
 public:
  virtual ~KvCache();
  // The number of positions filled.
  virtual int64_t length() const = 0;
  // Whether the cache can be continued to a text of `length` tokens: the keys
  // of a position may depend on the text's length (dynamic rope, longrope).
  virtual bool FitsLength(int64_t length) const { return true; }
};

// The input of a TokenModel.
struct TokenInput {
  at::Tensor tokens;  // [B, T] int64
  // If set, `tokens` follow the cached positions, and their keys and values are
  // appended. Only without gradients.
  KvCache* cache = nullptr;
  // [B, T] int64: each token's position in its document; undefined: 0, 1, .. in
  // each row. A row may pack several documents; a token sees only its own
  // document, up to itself if the model is causal. Not with a cache. On the CPU
  // even for a model on a GPU, which then knows the documents without waiting.
  at::Tensor positions;
  // [B] int64 or undefined: keys for dropout (kSamplePosition in dataset.h).
  // Only in training.
  at::Tensor sample_positions;
};

// The targets of the logits at each position, on the model's device, or for a
// model that takes_host_targets on the CPU.
struct TokenTargets {
  // [B, T] int64 target ids (already shifted for next-token prediction);
  // negative: no target.
  at::Tensor tokens;
  // [B, T] float32 weights of the losses; undefined: all 1.
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

  // The sum of weight * -log softmax(logits)[target] over the positions with a
  // target, as a float32 scalar with gradient (none to the weights). A model
  // may fuse its head with the loss here, so that the logits of a whole batch
  // never exist.
  virtual at::Tensor CrossEntropySum(const TokenInput& input,
                                     const TokenTargets& targets,
                                     UnitRunner& runner) = 0;

  // Whether a token sees only itself and those before it. Other models see the
  // whole text; with a cache, the new tokens see each other and all cached
  // ones, whose order doesn't matter beside their positions.
  virtual bool causal() const { return true; }

  // An empty cache for `batch` sequences of up to `max_length` positions.
  virtual absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const = 0;

  // The end-of-text token, or -1.
  virtual int64_t eos_token() const { return -1; }
  // Other tokens that end a text: a chat model's end of a turn, for instance.
  virtual std::vector<int64_t> other_end_tokens() const { return {}; }
  // The mask token, or -1.
  virtual int64_t mask_token() const { return -1; }
  // The package of the objective that samples from this model's folder if no
  // config names one ("capstan.causal_lm"); "" to choose it by the
  // architecture's name (ARCHITECTURE.md).
  virtual std::string sampling_objective() const { return ""; }
  // The text of the folder's generation_config.json, which has the sampling
  // options that neither a flag nor the objective's config sets
  // (lib/generation_config.h reads it); "" if there is none.
  virtual std::string generation_config() const { return ""; }

  // Whether TokenTargets and the targets of RowLosses may be on the CPU even
  // for a model on a GPU, whose head then skips positions without a target and
  // needn't wait for the device to know them.
  virtual bool takes_host_targets() const { return false; }
};

// Returns all tokens with which the model ends a text; may be none.
inline std::vector<int64_t> EndTokensOf(const TokenModel& model) {
  std::vector<int64_t> tokens = model.other_end_tokens();
  if (model.eos_token() >= 0) tokens.insert(tokens.begin(), model.eos_token());
  return tokens;
}

// Whether to give the model targets on the CPU: if it takes them, but not in
// runs with train.cuda_graphs, where each number of rows would be another
// graph.
bool TakesHostTargets(const TokenModel& model);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TOKEN_MODEL_H_
