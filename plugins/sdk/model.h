// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/parameters.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

class GradientSink;

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

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_H_
