// SPDX-License-Identifier: Apache-2.0
//
// The source of a Llama's sizes and initial values.
//
// The common part of Llama (Touvron et al., 2023, as in transformers'
// LlamaForCausalLM) and LLaDA:
//   x += attention(rms_norm(x)) Wo^T     rotary, grouped queries
//   x += (silu(n Wgate^T) * n Wup^T) Wdown^T   with n = rms_norm(x)
// in each layer, then logits = rms_norm(x) Whead^T. They differ in names, and
// in whether attention is causal.
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_MODEL_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/loss/token_loss.h"
#include "plugins/model/common/parameters.h"
#include "plugins/model/llama/llama_lora.h"
#include "plugins/model/llama/llama_sizes.h"
#include "plugins/sdk/adapter_switch.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/row_losses.h"

namespace capstan::llama {

// The rows that a vocabulary has beyond its checkpoint's, for tokens added to
// the tokenizer: each is the mean of the checkpoint's rows, around which
// transformers' resize_token_embeddings samples them with 1e-9 of the rows'
// covariance (modeling_utils.py, mean_resizing). Thread-safe.
class NewRows {
 public:
  // The checkpoint has `rows` rows of `width` numbers; `weights` outlives this.
  NewRows(const SafetensorsReader* weights, int64_t rows, int64_t width)
      : weights_(weights), rows_(rows), width_(width) {}

  // Elements [begin, begin + count) of the grown tensor `name`.
  absl::Status Read(const std::string& name, int64_t begin, int64_t count,
                    float* out);

 private:
  // The mean of the rows of tensor `name`, [width]; cached.
  absl::StatusOr<const std::vector<float>*> Mean(const std::string& name);

  const SafetensorsReader* const weights_;
  const int64_t rows_;
  const int64_t width_;
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> means_;
};

struct LlamaCheckpoint {
  LlamaConfig config;
  std::unique_ptr<SafetensorsReader> weights;  // null: random
  // Null: the vocabulary is that of the weights.
  std::unique_ptr<NewRows> new_rows;
};

// Opens and validates the weights of `folder`, whose config.json gave `config`,
// for a vocabulary of `vocab_size` (0: the folder's own). FieldError for
// "pretrained" or "vocab_size".
absl::StatusOr<LlamaCheckpoint> OpenCheckpoint(
    const std::string& folder, absl::StatusOr<LlamaConfig> config,
    int64_t vocab_size);

// From a plugin's config, which names a folder or has sizes.
template <typename Config>
absl::StatusOr<LlamaCheckpoint> MakeCheckpoint(
    const Config& config,
    absl::StatusOr<LlamaConfig> (*from_sizes)(const Config&),
    absl::StatusOr<LlamaConfig> (*from_folder)(const std::string&)) {
  if (!config.pretrained().empty()) {
    CAPSTAN_RETURN_IF_ERROR(CheckAlone(config, {"pretrained", "vocab_size"}));
    return OpenCheckpoint(config.pretrained(), from_folder(config.pretrained()),
                          config.vocab_size());
  }
  LlamaCheckpoint checkpoint;
  CAPSTAN_ASSIGN_OR_RETURN(checkpoint.config, from_sizes(config));
  return checkpoint;
}

class LlamaModel : public Model,
                   public TokenModel,
                   public RowLosses,
                   public AdapterSwitch {
 public:
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override;
  void Bind(std::vector<at::Tensor> parameters) override;
  void BindGradients(GradientSink* sink) override { sink_ = sink; }
  std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                    c10::ScalarType compute) const override;
  // The adapters' parameters come after all others.
  absl::Status AddLora(const LoraSpec& spec) override;
  TokenModel* token_model() override { return this; }

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override {
    return config_.max_position_embeddings;
  }
  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override;
  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override;
  at::Tensor CrossEntropyRows(const TokenInput& input,
                              const at::Tensor& targets,
                              UnitRunner& runner) override;
  bool has_adapter() const override { return lora_ != nullptr; }
  void SetAdapterEnabled(bool enabled) override { adapter_enabled_ = enabled; }
  bool causal() const override { return config_.causal; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override;
  int64_t eos_token() const override {
    return config_.eos_token_id.value_or(-1);
  }
  int64_t mask_token() const override {
    return config_.mask_token_id.value_or(-1);
  }

 protected:
  explicit LlamaModel(LlamaCheckpoint checkpoint);

  const LlamaConfig& config() const { return config_; }

 private:
  // The last layer's output, [B * T, hidden_size].
  at::Tensor Hidden(const TokenInput& input, UnitRunner& runner,
                    const kernels::TiedGradient& tied);
  // Cosines and sines of `length` positions from `begin` on.
  at::Tensor RopeAt(int64_t begin, int64_t length);
  // For the head's loss: null unless the embedding is the head and is trained.
  kernels::TiedGradient NewTiedGradient() const;
  // Weights and adapters of a layer.
  kernels::TransformerBlockWeights LayerWeights(
      int layer, const at::Tensor& samples) const;
  // Common to all layers of a forward.
  kernels::TransformerBlockOptions BlockOptions(const TokenInput& input);
  int head_unit() const { return static_cast<int>(units_.size()) - 1; }

  const LlamaConfig config_;
  const std::unique_ptr<SafetensorsReader> weights_;  // see LlamaCheckpoint
  const std::unique_ptr<NewRows> new_rows_;
  std::vector<ParameterSpec> specs_;
  const std::vector<std::string> units_;
  std::unique_ptr<LlamaLora> lora_;  // null: none
  bool adapter_enabled_ = true;
  size_t base_parameters_;  // those before the adapters'
  std::vector<at::Tensor> parameters_;
  GradientSink* sink_ = nullptr;
  at::Tensor rope_table_;  // grows with the longest sequence
};

}  // namespace capstan::llama

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_MODEL_H_
