// SPDX-License-Identifier: Apache-2.0
//
// The transformer for trying LLaDA's recipe from scratch, on a text of a
// megabyte:
//   x = dropout(layer_norm(token[ids] + position[0, 1, ..]))
//   x += attention(layer_norm(x)) Wo^T    every token sees the whole text
//   x += gelu(layer_norm(x) Win^T + bin) Wout^T + bout
// in each layer, then logits = layer_norm(x) Whead^T + bhead. Composed of
// LibTorch's operators: speed doesn't matter here.
#ifndef CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_LLADA_SCRATCH_H_
#define CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_LLADA_SCRATCH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention/attention.h"
#include "plugins/model/llada_scratch/llada_scratch.pb.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace llada_scratch {

class LladaScratch final : public Model, public TokenModel {
 public:
  // Opens and validates the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<LladaScratch>> Create(
      const Config& config);

  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override;
  void Bind(std::vector<at::Tensor> parameters) override;
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override;
  std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                    c10::ScalarType compute) const override;
  TokenModel* token_model() override { return this; }

  int64_t vocab_size() const override { return sizes_.vocab_size(); }
  int64_t max_positions() const override {
    return sizes_.max_sequence_length();
  }
  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override;
  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override;
  bool causal() const override { return false; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override;
  int64_t eos_token() const override {
    return sizes_.has_eos_token_id() ? sizes_.eos_token_id() : -1;
  }
  int64_t mask_token() const override { return sizes_.mask_token_id(); }
  std::string sampling_objective() const override {
    return "capstan.masked_diffusion";
  }

 private:
  LladaScratch(Config sizes, std::unique_ptr<SafetensorsReader> weights);

  // The last layer's output, [B * T, hidden_size].
  at::Tensor Hidden(const TokenInput& input, UnitRunner& runner);
  // The attention shape for `batch` rows.
  kernels::AttentionShape Attention(int64_t batch) const;
  // `count` parameters from `first` on.
  std::vector<at::Tensor> Parameters(int first, int count) const;
  int head_unit() const { return static_cast<int>(units_.size()) - 1; }

  const Config sizes_;
  const std::unique_ptr<SafetensorsReader> weights_;  // null: random
  std::vector<ParameterSpec> specs_;
  std::vector<std::string> units_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace llada_scratch
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_LLADA_SCRATCH_H_
