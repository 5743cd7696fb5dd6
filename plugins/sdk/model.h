// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "kernels/context/fp8.h"
#include "plugins/sdk/parameters.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

class GradientSink;  // kernels/context/gradient_sink.h

// What a unit allocates for a micro-batch, in bytes.
struct UnitMemory {
  // Its output and what autograd saves, until backward; not the unit's input.
  int64_t kept = 0;
  int64_t output = 0;  // the output's share of it, which checkpointing keeps
  int64_t forward_workspace = 0;  // peak beyond `kept` in forward
  // Peak beyond `kept` in backward, without the largest parameter gradient,
  // which strategies count. Negative if that reuses the head's memory.
  int64_t backward_workspace = 0;
  // Logits and their gradients, which the above doesn't include.
  int64_t logits_kept = 0;     // until the end of backward
  int64_t logits_passing = 0;  // only while the unit runs
};

// The formats of frozen matrices ("QLoRA", Dettmers et al., 2023): the folder's
// own, or 4 bits a value with a scale of 32 bits (or 8: double) per 64 values,
// or 8 bits with a scale of 32 bits per row.
enum class Quantize : int { kFolders = 0, kNf4, kNf4Double, kFp8 };

// Low-rank adapters ("LoRA", Hu et al., 2021, section 4.1): W x becomes
// W x + scale * B A dropout(x), with W [out, in], A [rank, in], B [out, rank].
// PEFT's names are used: "base_model.model.MODULE.lora_A.weight".
struct LoraSpec {
  int64_t rank = 8;
  double alpha = 8.0;
  double dropout = 0.0;  // of x, in [0, 1); keyed by sample_position, offset
  bool rslora = false;   // scale = alpha / sqrt(rank) rather than alpha / rank
  // Suffixes of module names that exist, or {"all-linear"}: all but the head.
  std::vector<std::string> target_modules;
  // A PEFT folder with the initial values; "": A is uniform in +-1/sqrt(in)
  // (Kaiming with a = sqrt(5)), B is 0.
  std::string pretrained;
  uint64_t seed = 0;  // the run's, for dropout
  double scale() const;
  // Packs the frozen matrices of all linear layers but the head (PackedBytes).
  // If the folder's are packed already, it is their format or kFolders.
  Quantize quantize = Quantize::kFolders;
  // "DoRA" (Liu et al., 2024, equation 5): W x becomes m * (W + scale * B A) x
  // / |W + scale * B A|, with m [out] trained ("lora_magnitude_vector") and the
  // norms those of rows, which no gradient passes (section 4.3).
  bool dora = false;
};

// A matrix is multiplied with of_length * length + of_row of a row's tokens.
struct TokenShare {
  double of_length = 1.0;
  double of_row = 0.0;
};

// The format of matrices in memory during inference. Activations are float32.
enum class WeightForm {
  kStored,  // in the dtype in which a folder has them
  kFloat32,
  kBfloat16,
  kInt8,  // with a scale a row: max |x| / 127
};

// Implemented by a Model that computes on CPUs, without gradients, from
// matrices of fewer bits than its activations or from its mapped files.
class InferenceWeights {
 public:
  virtual ~InferenceWeights();

  // Returns a read-only view of a parameter in its mapped file, of the file's
  // dtype, valid as long as the model; undefined if it can't be bound as it is.
  virtual at::Tensor StoredWeight(int index) const = 0;

  // Like Bind, for forwards on the CPU without gradients. `weights` are
  // float32, StoredWeight's or packed bytes; each is freed once it has `form`.
  virtual absl::Status BindForInference(std::vector<at::Tensor> weights,
                                        WeightForm form) = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

// Declares parameters, and computes with tensors that a strategy owns.
class Model {
 public:
  virtual ~Model();

  // In the order of first use in forward. Constant.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  virtual const std::vector<std::string>& units() const = 0;  // forward order

  // Constant. By default matrices are kEmbedding if backward doesn't read them,
  // kHead in the last unit, else kMatrix; *norm* vectors kNorm; others kOther.
  virtual ParameterRole role(int parameter) const;

  // Writes elements [begin, begin + count) (row-major) of the initial value,
  // the checkpoint's or random by RandomKey(seed, name), to `out`. Thread-safe.
  virtual absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                                    int64_t count, float* out) const = 0;

  // Returns the bytes of a packed parameter (of 4 bits, say), which is frozen;
  // 0 if it isn't packed. Constant from AddLora on. Strategies bind the bytes,
  // as contiguous 1-D uint8 aligned to 64; InitialValue returns decoded values.
  virtual int64_t PackedBytes(int index) const { return 0; }
  // Writes bytes [begin, begin + count), never holding all values. Thread-safe.
  virtual absl::Status PackedValue(int index, int64_t begin, int64_t count,
                                   uint8_t* out) const;
  // Decodes all bytes, in host memory, to spec.numel() values. Thread-safe.
  virtual void Unpack(int index, const uint8_t* bytes, float* out) const {}

  // Sets the tensors, in order, with spec.shape, one dtype and device, and
  // requires_grad where trainable. The strategy owns their memory.
  virtual void Bind(std::vector<at::Tensor> parameters) = 0;

  // Lets a hand-written backward write gradients to `sink` (null: no longer).
  // The strategy owns it; it lives as long as the bound parameters.
  virtual void BindGradients(GradientSink* sink) {}

  // Writes all but the weights, which have `dtype`, into an existing folder.
  virtual absl::Status SaveConfig(const std::string& folder,
                                  c10::ScalarType dtype) const = 0;

  // Returns one per unit, to train on [samples, length] tokens; empty: unknown.
  virtual std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                            c10::ScalarType compute) const {
    return {};
  }

  // Sets the modules to train in full beside adapters (PEFT's modules_to_save),
  // named as in LoraSpec::target_modules. Called before AddLora, which starts
  // from LoraSpec::pretrained, if set, and returns a FieldError of
  // modules_to_save for one that can't be trained. Default: such an error.
  virtual absl::Status SetModulesToSave(std::vector<std::string> modules);
  // Returns, after AddLora, the names under which an adapter's file has such a
  // module's parameter (two if the head is tied to it); empty for others.
  virtual std::vector<std::string> SavedNames(int index) const { return {}; }

  // Freezes the parameters and adds adapters to them. Called before Bind.
  virtual absl::Status AddLora(const LoraSpec& spec) {
    return absl::UnimplementedError("this model can't have a LoRA adapter");
  }
  // Whether SetAdapterEnabled can make the model compute like its base model.
  virtual bool has_adapter() const { return false; }
  // If has_adapter, sets whether forwards use the adapter; at first they do.
  // Bodies passed to UnitRunner::Run keep the old setting. Not thread-safe.
  virtual void SetAdapterEnabled(bool enabled) {}

  // To count FLOPs: the tokens that matrix `parameter` multiplies. That of
  // attention's output projection also counts its queries. Unset: all tokens.
  virtual absl::optional<TokenShare> ShareOf(int parameter) const {
    return absl::nullopt;
  }

  virtual InferenceWeights* inference_weights() { return nullptr; }

  // Null for other kinds of model (docs/sdk.md).
  virtual TokenModel* token_model() { return nullptr; }

  // Returns state beside the parameters (means of a router's load), or "".
  // Checkpoints save rank 0's, which is restored before the first step. Only
  // runs get it back: final/, eval and generate have the parameters alone.
  virtual std::string SaveState() const;                       // Room1
  virtual absl::Status RestoreState(absl::string_view state);  // Room2

  // Has linear layers multiply in 8 bits in forwards without a cache, and in
  // their backwards. Called after AddLora and before PlanUnits and Bind. May
  // return an error that says what to take instead, as it does by default.
  virtual absl::Status SetFp8(const Fp8Spec& how);  // Room3

 private:
  // Room to grow (plugin.h).
  virtual void Room4();
  virtual void Room5();
  virtual void Room6();
  virtual void Room7();
  virtual void Room8();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_H_
