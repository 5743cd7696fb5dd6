// SPDX-License-Identifier: Apache-2.0
//
// The transformer of Algorithm Distillation as in its darkroom program:
// torch.nn.TransformerEncoder (post-norm, GELU), used causally, over
// transitions and one queried state, at whose position alone the output is
// read:
//   x_t = embedding of token t + its type's + its position's
//   logits = pred_action(encoder(x)_last), pred_token_type(encoder(x)_last)
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_AD_TRANSFORMER_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_AD_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/encoder/encoder_block.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/algorithm_distillation/transformer/ad_transformer.pb.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"

namespace capstan::ad_transformer {

// The model's sizes, with all defaults filled in.
struct Sizes {
  int64_t embedding = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t feed_forward = 0;
  int64_t n_transit = 0;
  std::vector<int64_t> observation = {9, 9};
  int64_t actions = 5;
  bool compressed = false;
  double dropout = 0.1;

  HistoryColumns columns() const {
    return {static_cast<int64_t>(observation.size())};
  }
  // Numbers per transition: observation, one-hot action, reward, next one.
  int64_t features() const { return actions + columns().count() - 1; }
  // Different observations.
  int64_t observations() const;
};

// Indices of the first unit's parameters; the last three exist only if
// `compressed`.
enum EmbeddingParameter {
  kPositions,      // [1, n_transit, E]
  kContextWeight,  // [E, features]
  kContextBias,    // [E]
  kQueryStates,    // [observations, E]
  kTokenTypeRows,  // [3, E]
  kStartToken,     // [1, 1, E]
  kEndToken,       // [1, 1, E]
};

// What a parameter is before training.
struct InitialValues {
  enum Kind { kConstant, kUniform, kNormal } kind;
  double size;  // the constant, the bound or the standard deviation
};

class AdTransformer final : public Model, public HistoryModel {
 public:
  // Opens and validates the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<AdTransformer>> Create(
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
  // length: tokens of a history; 0: n_transit.
  std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                    c10::ScalarType compute) const override;

  // The last layer's keys and values are of all tokens, the rest, and the head,
  // of the last one.
  absl::optional<TokenShare> ShareOf(int parameter) const override;

  HistorySpec history_spec() const override;
  at::Tensor LastLogits(const HistoryInput& input, UnitRunner& runner) override;
  std::unique_ptr<HistoryCache> NewCache(int64_t rows) const override;
  at::Tensor NextLogits(HistoryCache& cache, const HistoryInput& input,
                        UnitRunner& runner) override;

  // For tests: uses LibTorch's operators even where there are faster loops.
  void UsePlainOperators() { plain_ = true; }

 private:
  explicit AdTransformer(const Sizes& sizes);

  std::vector<at::Tensor> EmbeddingWeights() const;
  kernels::EncoderBlockWeights LayerWeights(int64_t layer) const;
  at::Tensor Head(const at::Tensor& last, UnitRunner& runner) const;
  int head_unit() const { return static_cast<int>(units_.size()) - 1; }

  const Sizes sizes_;
  std::unique_ptr<SafetensorsReader> weights_;  // null: random
  std::vector<ParameterSpec> specs_;
  std::vector<InitialValues> initial_;  // unless read from weights_
  const std::vector<std::string> units_;
  std::vector<at::Tensor> parameters_;
  bool plain_ = false;
};

}  // namespace capstan::ad_transformer

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_AD_TRANSFORMER_H_
