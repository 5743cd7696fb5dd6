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

class ProcessGroup;

// Implemented by a KvCache whose rows may be texts of different lengths.
// TokenInput::positions then holds positions in a row's text; negative ones are
// padding, which only precedes a row's first token and which no token sees.
class BatchedCache {
 public:
  virtual ~BatchedCache();
  // Announces how long each row's text will be, before its first piece. Models
  // whose positions depend on it (dynamic rope, longrope) use it.
  virtual void ExpectLengths(const std::vector<int64_t>& lengths);
  // Forgets all but the first `length` positions, padding included.
  virtual void Rewind(int64_t length) = 0;
  // Makes row i the former row rows[i], which may occur many times or never.
  virtual void KeepRows(const std::vector<int64_t>& rows) = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

class KvCache {
 public:
  virtual ~KvCache();
  virtual int64_t length() const = 0;  // positions filled
  // Whether it can grow to `length`, on which keys may depend (longrope).
  virtual bool FitsLength(int64_t length) const { return true; }
  virtual BatchedCache* batched() { return nullptr; }

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

struct TokenInput {
  at::Tensor tokens;  // [B, T] int64
  // If set, `tokens` follow and are appended to it. Only without gradients.
  KvCache* cache = nullptr;
  // [B, T] int64: each token's position in its document, all that it sees (up
  // to itself if causal). Undefined: 0, 1, .. in each row. Not with a cache,
  // unless it is batched. On the CPU even for a model on a GPU.
  at::Tensor positions;
  // [B] int64 or undefined: keys for dropout in training (kSamplePosition).
  at::Tensor sample_positions;
};

// On the model's device, or on the CPU if it takes_host_targets.
struct TokenTargets {
  at::Tensor tokens;   // [B, T] int64, already shifted; negative: no target
  at::Tensor weights;  // [B, T] float32, of the losses; undefined: all 1
};

// What keeps fine-tuning from learning its texts too closely.
struct Regularization {
  // The target's share of the distribution that is learnt is 1 - smoothing; the
  // rest is spread evenly over the vocabulary, target included ("label
  // smoothing", Szegedy et al., 2016, section 7). In [0, 1).
  double smoothing = 0.0;
  // Noise on the embeddings, uniform in +-noise_alpha / sqrt(L * hidden), with
  // L a row's tokens up to its last target ("NEFTune", Jain et al., 2023,
  // section 2, has the tokens that aren't padding); 0: none. Keyed by the run's
  // seed, sample_positions and the place in the row, so that it doesn't depend
  // on how a run is divided.
  double noise_alpha = 0.0;
  uint64_t seed = 0;
};

// Implemented by a TokenModel whose head is a score of a text instead of logits
// over a vocabulary (a reward model).
class TextScores {
 public:
  virtual ~TextScores();

  // Returns [B] float32 with gradient: each text's score, read at its last
  // token, row b's position last[b]. `last`: [B] int64, on the CPU. Collective
  // if ranks share rows.
  virtual at::Tensor Scores(const TokenInput& input, const at::Tensor& last,
                            UnitRunner& runner) = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

// Implemented by a TokenModel that can compute a loss for each row. Collective
// if ranks share rows (TokenModel::SetSequenceGroup).
class RowLosses {
 public:
  virtual ~RowLosses();

  // Returns [S, B] float32 with gradient: for each of S sets of targets and
  // each row, the sum of -log softmax(logits)[target] over positions with a
  // target. `targets`: [S, B, T] int64, as TokenTargets::tokens; sets with a
  // target at a position must have the same one there. Never holds all logits.
  virtual at::Tensor CrossEntropyRows(const TokenInput& input,
                                      const at::Tensor& targets,
                                      UnitRunner& runner) = 0;

  // Returns [B, T] float32 with gradient: log softmax(logits /
  // temperature)[target] at positions with a target, 0 at others. `targets`:
  // [B, T] int64, as TokenTargets::tokens. Sets *entropy, unless it is null, to
  // [B, T] float32 without gradient: the entropy of that distribution in nats.
  // Never holds all logits. Throws std::logic_error by default.
  virtual at::Tensor TokenLogProbs(const TokenInput& input,
                                   const at::Tensor& targets,
                                   double temperature, at::Tensor* entropy,
                                   UnitRunner& runner);  // Room1
  virtual bool has_token_log_probs() const;              // Room2
};

// Maps token sequences to logits over a vocabulary.
class TokenModel {
 public:
  virtual ~TokenModel();

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;

  // [B, T, V], in the compute dtype.
  virtual at::Tensor Logits(const TokenInput& input, UnitRunner& runner) = 0;

  // [B, 1, V], of the last position. By default the last of Logits.
  virtual at::Tensor LastLogits(const TokenInput& input, UnitRunner& runner);
  // Whether LastLogits computes those of the last position alone.
  virtual bool skips_other_logits() const { return false; }

  // Returns the sum of weight * -log softmax(logits)[target] over positions
  // with a target: a float32 scalar with gradient (none to the weights).
  virtual at::Tensor CrossEntropySum(const TokenInput& input,
                                     const TokenTargets& targets,
                                     UnitRunner& runner) = 0;

  // Whether a token sees only itself and those before it. Otherwise it sees the
  // whole text, and the cached tokens in whatever order they are.
  virtual bool causal() const { return true; }

  virtual absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const = 0;

  virtual int64_t eos_token() const { return -1; }  // -1: none
  // Other tokens that end a text, such as a chat model's end of turn.
  virtual std::vector<int64_t> other_end_tokens() const { return {}; }
  virtual int64_t mask_token() const { return -1; }  // -1: none
  // The package of the objective to sample with if no config names one
  // ("capstan.causal_lm"); "": by architecture (ARCHITECTURE.md).
  virtual std::string sampling_objective() const { return ""; }
  // The text of the folder's generation_config.json (lib/generation_config.h),
  // for options that neither a flag nor the objective's config sets; "": none.
  virtual std::string generation_config() const { return ""; }

  virtual RowLosses* row_losses() { return nullptr; }

  // Whether targets may be on the CPU for a model on a GPU, whose head skips
  // positions without one and then needn't wait for the device.
  virtual bool takes_host_targets() const { return false; }

  // Divides each row in CrossEntropySum, RowLosses and TextScores among
  // `group`, whose ranks pass the same input and targets (sequence
  // parallelism): their sums and gradients add up to the whole, to one rank's
  // bits if `deterministic`. Of RowLosses and TextScores each rank gets the
  // whole, with gradients that add up. Other forwards stay undivided. `group`
  // lives as long as the model computes. Called before Bind.
  // An error by default, and if the group's size doesn't fit.
  virtual absl::Status SetSequenceGroup(ProcessGroup* group,
                                        bool deterministic);  // Room1

  // CrossEntropySum with `how`: -log softmax(logits) of the target counts
  // 1 - how.smoothing, its mean over the vocabulary how.smoothing. Without
  // either, the same bits. Throws std::logic_error unless it regularizes().
  virtual at::Tensor RegularizedSum(const TokenInput& input,
                                    const TokenTargets& targets,
                                    const Regularization& how,
                                    UnitRunner& runner);  // Room2
  virtual bool regularizes() const;                       // Room3

  // Null: its head has logits. A model that has scores has no logits.
  virtual TextScores* text_scores();  // Room4

 private:
  // Room to grow (plugin.h).
  virtual void Room5();
  virtual void Room6();
  virtual void Room7();
  virtual void Room8();
};

inline std::vector<int64_t> EndTokensOf(const TokenModel& model) {
  std::vector<int64_t> tokens = model.other_end_tokens();
  if (model.eos_token() >= 0) tokens.insert(tokens.begin(), model.eos_token());
  return tokens;
}

// Whether to pass it targets on the CPU: if it takes them, but not with
// train.cuda_graphs, where each number of rows would be another graph.
bool TakesHostTargets(const TokenModel& model);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TOKEN_MODEL_H_
