// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

class GradientSink;
class TokenModel;

// Runs one unit of a model. Strategies gather and free parameters around
// units, so a model's forward does all its work inside Run.
class UnitRunner {
 public:
  using Body = std::function<at::Tensor(const at::Tensor& input)>;
  virtual ~UnitRunner();
  // body(input), between the strategy's callbacks. `unit` indexes
  // Model::units(). `body` may be called again in backward (activation
  // checkpointing), so it must capture by value what it needs.
  virtual at::Tensor Run(int unit, const at::Tensor& input,
                         const Body& body) = 0;
};

// Runs units with no callbacks: for a model whose parameters are whole.
class PlainRunner final : public UnitRunner {
 public:
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;
};

struct ParameterSpec {
  // As in the model's Hugging Face checkpoint; unique.
  std::string name;
  std::vector<int64_t> shape;
  // The unit that owns it. A tied weight is one parameter of the unit that
  // uses it first.
  int unit = 0;
  bool trainable = true;
  // The other units whose forward uses it, ascending, all behind `unit`.
  std::vector<int> other_units;
  // Whether backward reads its value in its own unit (an embedding's doesn't).
  bool read_in_backward = true;
  int64_t numel() const;
};

// What one unit allocates for a micro-batch, in bytes.
struct UnitMemory {
  // From its forward to its backward: what autograd saves, and its output; not
  // its input, which is the output of the unit before.
  int64_t kept = 0;
  // Its output's part of `kept`: all that is left of it under activation
  // checkpointing.
  int64_t output = 0;
  // At most at one time beyond `kept`, while its forward runs.
  int64_t forward_workspace = 0;
  // At most at one time beyond `kept`, while its backward runs: gradients of
  // activations, temporaries, and gradients of parameters as far as several
  // are there at a time: without the largest, which strategies count. Negative
  // where what the head has kept becomes that one.
  int64_t backward_workspace = 0;
  // Logits and their gradients, beyond the above: from the unit's forward to
  // the end of backward (kept), or only while it runs.
  int64_t logits_kept = 0;
  int64_t logits_passing = 0;
};

// Low-rank adapters ("LoRA", Hu et al., 2021, section 4.1): a module of weight
// W [out, in] computes W x + scale * B A dropout(x), with A [rank, in] and B
// [out, rank], B = 0 at first. Parameters are named as PEFT names them:
// "base_model.model.MODULE.lora_A.weight" and "..lora_B.weight", in float32.
struct LoraSpec {
  int64_t rank = 8;
  double alpha = 8.0;
  // Of the adapter's input, in [0, 1); drawn by sample_position and place.
  double dropout = 0.0;
  bool rslora = false;  // scale = alpha / sqrt(rank) rather than alpha / rank
  // Ends of module names ("q_proj", "self_attn.q_proj"), or {"all-linear"}:
  // all but the head. A name that is no module's is an error.
  std::vector<std::string> target_modules;
  // A PEFT folder whose adapter_model.safetensors has the initial values; "":
  // A is random (uniform in +-1/sqrt(in), Kaiming with a = sqrt(5)), B is 0.
  std::string pretrained;
  uint64_t seed = 0;  // the run's, for dropout
  double scale() const;
};

// A model knows its parameters by name and shape, and computes with tensors
// that a strategy owns. Creating one allocates nothing of the model's size:
// config errors, `check` and `plan` cost milliseconds.
class Model {
 public:
  virtual ~Model();

  // In the order of first use in forward. Constant.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  // Names of the units, in the order of forward ("embed", "layers.0", ..).
  virtual const std::vector<std::string>& units() const = 0;

  // Writes elements [begin, begin + count) of parameter `index`'s initial
  // value (row-major) to `out`: from the checkpoint that the config names, or
  // random by RandomKey(seed, name). Thread-safe.
  virtual absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                                    int64_t count, float* out) const = 0;

  // The tensors to compute with, one a parameter, in order, in spec.shape, of
  // one dtype and device; requires_grad is set for the trainable ones. The
  // strategy owns their memory and may free and refill it around units.
  virtual void Bind(std::vector<at::Tensor> parameters) = 0;

  // Where backward may write gradients itself (gradient_sink.h); null: nowhere.
  // `sink` is the strategy's, and is there as long as the parameters that are
  // bound. For models whose backward is written by hand; others need not care.
  virtual void BindGradients(GradientSink* sink) {}

  // Writes config.json and what else the model's own format wants beside the
  // weights, for weights of `dtype`, into an existing folder.
  virtual absl::Status SaveConfig(const std::string& folder,
                                  c10::ScalarType dtype) const = 0;

  // One a unit, for a training micro-batch of `samples` samples of `length`
  // tokens in `compute`; empty if the model can't tell, and `plan` then says
  // that it doesn't know.
  virtual std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                            c10::ScalarType compute) const {
    return {};
  }

  // Freezes the model's parameters and adds low-rank ones beside those that
  // `spec` names; parameters() has them from then on. Before Bind.
  virtual absl::Status AddLora(const LoraSpec& spec) {
    return absl::UnimplementedError("this model can't have a LoRA adapter");
  }

  // This model as a model of token sequences, or null if it isn't one. What
  // other kinds of model offer an objective is a matter between these two: an
  // abstract class in a header that both include, found by dynamic_cast.
  virtual TokenModel* token_model() { return nullptr; }
};

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
  // token in its document; a row's documents stand one behind the other, and a
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

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_H_
