// SPDX-License-Identifier: Apache-2.0
//
// What each token adds to an objective's loss.
#ifndef CAPSTAN_DESK_WHO_TOKEN_LOSSES_H_
#define CAPSTAN_DESK_WHO_TOKEN_LOSSES_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// Stands before a token model and does what that does, and notes the loss of
// each target of which an objective asks for the sum, or -log p of those whose
// log-probabilities it asks for. So an objective needs no interface for this,
// and one of another kind notes nothing. An objective that knows its model by
// another interface must get the model itself.
class TokenLossModel final : public Model {
 public:
  // `model`, a model of tokens, must outlive this.
  explicit TokenLossModel(Model* model);
  ~TokenLossModel() override;

  // [B, T] float32 on the CPU: the weighted losses at the positions of the
  // targets since the last call, minus infinity where there is none. Undefined
  // if no sum was asked for; of texts of several shapes, those of the last.
  at::Tensor Take();

  const std::vector<ParameterSpec>& parameters() const override {
    return model_.parameters();
  }
  const std::vector<std::string>& units() const override {
    return model_.units();
  }
  ParameterRole role(int parameter) const override {
    return model_.role(parameter);
  }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override {
    return model_.InitialValue(index, seed, begin, count, out);
  }
  void Bind(std::vector<at::Tensor> parameters) override {
    model_.Bind(std::move(parameters));
  }
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override {
    return model_.SaveConfig(folder, dtype);
  }
  bool has_adapter() const override { return model_.has_adapter(); }
  void SetAdapterEnabled(bool enabled) override {
    model_.SetAdapterEnabled(enabled);
  }
  TokenModel* token_model() override;

 private:
  class Tokens;
  Model& model_;
  const std::unique_ptr<Tokens> tokens_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_WHO_TOKEN_LOSSES_H_
