// SPDX-License-Identifier: Apache-2.0
//
// The common part of Llama (Touvron et al., 2023, as in transformers'
// LlamaForCausalLM) and LLaDA:
//   x += attention(rms_norm(x)) Wo^T     rotary, grouped queries
//   x += (silu(n Wgate^T) * n Wup^T) Wdown^T   with n = rms_norm(x)
// in each layer, then logits = rms_norm(x) Whead^T. They differ in names, and
// in whether attention is causal.
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_MODEL_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/loss/token_loss.h"
#include "plugins/model/llama/llama_checkpoint.h"
#include "plugins/model/llama/llama_lora.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace llama {

class LlamaModel : public Model, public TokenModel {
 public:
  const std::vector<ParameterSpec>& parameters() const override;
  const std::vector<std::string>& units() const override;
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
  size_t base_parameters_;           // those before the adapters'
  std::vector<at::Tensor> parameters_;
  GradientSink* sink_ = nullptr;
  at::Tensor rope_table_;  // grows with the longest sequence
};

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_MODEL_H_
