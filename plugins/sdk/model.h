// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
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
  // From its forward to its backward: its output and what autograd saves,
  // except its input, which is the previous unit's output.
  int64_t kept = 0;
  // The output's share of `kept`: all that remains under activation
  // checkpointing.
  int64_t output = 0;
  // Peak beyond `kept` during its forward.
  int64_t forward_workspace = 0;
  // Peak beyond `kept` during its backward, without the largest gradient of a
  // parameter, which strategies count. Negative if that one reuses memory kept
  // by the head.
  int64_t backward_workspace = 0;
  // Logits and their gradients, in addition to the above: kept from the unit's
  // forward to the end of backward, or only while it runs.
  int64_t logits_kept = 0;
  int64_t logits_passing = 0;
};

// The formats of frozen matrices ("QLoRA", Dettmers et al., 2023): the folder's
// own, or 4 bits a value with a scale per 64 values, of 32 bits or of 8 (double
// quantisation).
enum class Quantize : int { kFolders = 0, kNf4, kNf4Double };

// Low-rank adapters ("LoRA", Hu et al., 2021, section 4.1): a module with
// weight W [out, in] computes W x + scale * B A dropout(x), with A [rank, in]
// and B [out, rank]. Parameters have PEFT's names:
// "base_model.model.MODULE.lora_A.weight" and "..lora_B.weight".
struct LoraSpec {
  int64_t rank = 8;
  double alpha = 8.0;
  // Of the adapter's input, in [0, 1); keyed by sample_position and offset.
  double dropout = 0.0;
  bool rslora = false;  // scale = alpha / sqrt(rank) rather than alpha / rank
  // Suffixes of module names ("q_proj", "self_attn.q_proj"), or {"all-linear"}:
  // all but the head. A name that matches no module is an error.
  std::vector<std::string> target_modules;
  // A PEFT folder whose adapter_model.safetensors has the initial values; "": A
  // is random (uniform in +-1/sqrt(in), Kaiming with a = sqrt(5)), B is 0.
  std::string pretrained;
  uint64_t seed = 0;  // the run's, for dropout
  double scale() const;
  // The format of the frozen matrices of all linear layers but the head; they
  // are packed (Model::PackedBytes). kFolders keeps the format of a folder
  // whose matrices are packed already; any other value must equal that format.
  Quantize quantize = Quantize::kFolders;
};

// A model declares its parameters by name and shape, and computes with tensors
// that a strategy owns. Creating one allocates nothing proportional to the
// model's size, so config errors, `check` and `plan` take milliseconds.
class Model {
 public:
  virtual ~Model();

  // In the order of first use in forward. Constant.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  // Names of the units in forward order ("embed", "layers.0", ..).
  virtual const std::vector<std::string>& units() const = 0;

  // The role of a parameter. By default kEmbedding for a matrix that its unit's
  // backward doesn't read, kHead for one of the last unit, kMatrix for others,
  // kNorm for a vector whose name contains "norm", else kOther. Constant.
  virtual ParameterRole role(int parameter) const;

  // Writes elements [begin, begin + count) of parameter `index`'s initial value
  // (row-major) to `out`: from the checkpoint named in the config, or random by
  // RandomKey(seed, name). Thread-safe.
  virtual absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                                    int64_t count, float* out) const = 0;

  // Frozen parameters may be packed (4-bit weights, say): a strategy holds,
  // shards and gathers their bytes, which only the model interprets. Bind then
  // gets a contiguous 1-D uint8 tensor of PackedBytes(i) bytes, aligned to 64,
  // instead of one with spec.shape and the compute dtype. InitialValue returns
  // the decoded values.
  //
  // The size of parameter `index` in bytes; 0 if it isn't packed, as every
  // trainable one. Constant from AddLora on.
  virtual int64_t PackedBytes(int index) const { return 0; }
  // Writes bytes [begin, begin + count) of a packed parameter to `out`, without
  // ever holding all of its values. Thread-safe.
  virtual absl::Status PackedValue(int index, int64_t begin, int64_t count,
                                   uint8_t* out) const;
  // Decodes the PackedBytes(index) `bytes` of a parameter, in host memory, into
  // `out`: spec.numel() values. Thread-safe.
  virtual void Unpack(int index, const uint8_t* bytes, float* out) const {}

  // Sets the tensors to compute with, one per parameter, in order, shaped as in
  // the spec, of one dtype and device; requires_grad is set on the trainable
  // ones. The strategy owns their memory and may free and refill it around
  // units.
  virtual void Bind(std::vector<at::Tensor> parameters) = 0;

  // For models with a hand-written backward: lets it write gradients to `sink`
  // (kernels/context/gradient_sink.h; null: no longer). The strategy owns
  // `sink`, which lives as long as the bound parameters.
  virtual void BindGradients(GradientSink* sink) {}

  // Writes config.json and the model format's other files, except the weights,
  // into an existing folder, for weights of `dtype`.
  virtual absl::Status SaveConfig(const std::string& folder,
                                  c10::ScalarType dtype) const = 0;

  // One per unit, for a training micro-batch of `samples` samples of `length`
  // tokens in `compute`. Empty if unknown; `plan` then says so.
  virtual std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                            c10::ScalarType compute) const {
    return {};
  }

  // Sets the modules that are trained in full beside low-rank adapters, like
  // PEFT's modules_to_save: names or suffixes, as in LoraSpec::target_modules.
  // Called before AddLora, which leaves their parameters trainable, takes their
  // initial values from LoraSpec::pretrained if that is set, and reports
  // modules that can't be trained as a FieldError of modules_to_save. By
  // default, returns such an error.
  virtual absl::Status SetModulesToSave(std::vector<std::string> modules);
  // The names of parameter `index` of such a module in an adapter's file, after
  // AddLora; empty for other parameters. An embedding tied to the head has two
  // names, and the file stores its value under both.
  virtual std::vector<std::string> SavedNames(int index) const { return {}; }

  // Freezes the model's parameters and adds adapters to the modules that `spec`
  // names; from then on parameters() includes them. Called before Bind.
  virtual absl::Status AddLora(const LoraSpec& spec) {
    return absl::UnimplementedError("this model can't have a LoRA adapter");
  }
  // Whether SetAdapterEnabled can switch the adapter off, so that the model
  // computes like its base model. (Preference optimisation compares the two.)
  virtual bool has_adapter() const { return false; }
  // If has_adapter, sets whether forwards that begin from now on use the
  // adapter; at first they do. Bodies already passed to UnitRunner::Run keep
  // the previous setting. Not thread-safe.
  virtual void SetAdapterEnabled(bool enabled) {}

  // This model as a token model, or null. For other kinds of model, declare an
  // abstract class in a header shared by the model and its objective, which
  // finds it by dynamic_cast.
  virtual TokenModel* token_model() { return nullptr; }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_H_
