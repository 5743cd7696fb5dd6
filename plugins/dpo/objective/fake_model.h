// SPDX-License-Identifier: Apache-2.0
//
// A fake model of token sequences in float64: a token's logits for the next one
// are its row of a table, to which an adapter adds a row of its own.
#ifndef CAPSTAN_PLUGINS_DPO_OBJECTIVE_FAKE_MODEL_H_
#define CAPSTAN_PLUGINS_DPO_OBJECTIVE_FAKE_MODEL_H_

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/token_model.h"

namespace capstan::dpo {

class FakeModel final : public Model, public TokenModel, public RowLosses {
 public:
  static constexpr int64_t kVocab = 7;

  explicit FakeModel(bool adapter = false) {
    parameters_.resize(1);
    parameters_[0].name = "table";
    parameters_[0].shape = {kVocab, kVocab};
    if (adapter) {
      parameters_.push_back(parameters_[0]);
      parameters_[1].name = AdapterParameterName("table", /*is_b=*/true);
    }
    std::vector<at::Tensor> tensors;
    for (const ParameterSpec& spec : parameters_) {
      const int index = static_cast<int>(tensors.size());
      at::Tensor value = at::zeros({kVocab, kVocab}, at::kDouble);
      for (int64_t i = 0; i < value.numel(); ++i) {
        value.mutable_data_ptr<double>()[i] = ValueOf(index, i);
      }
      const bool trained = index + 1 == static_cast<int>(parameters_.size());
      tensors.push_back(value.set_requires_grad(trained));
      (void)spec;
    }
    Bind(tensors);
  }

  const std::vector<ParameterSpec>& parameters() const override {
    return parameters_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int index, uint64_t, int64_t begin, int64_t count,
                            float* out) const override {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<float>(ValueOf(index, begin + i) + initial_shift);
    }
    return absl::OkStatus();
  }
  void Bind(std::vector<at::Tensor> tensors) override {
    tensors_ = std::move(tensors);
  }
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }
  TokenModel* token_model() override { return this; }

  int64_t vocab_size() const override { return kVocab; }
  int64_t max_positions() const override { return positions; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return absl::UnimplementedError("has none");
  }
  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override {
    return runner.Run(0, input.tokens, Lookup());
  }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return at::Tensor();
  }
  RowLosses* row_losses() override { return this; }
  at::Tensor CrossEntropyRows(const TokenInput& input,
                              const at::Tensor& targets,
                              UnitRunner& runner) override {
    inputs.push_back(input);
    const at::Tensor logits = runner.Run(0, input.tokens, Lookup());
    return runner.Run(1, logits, [targets](const at::Tensor& x) {
      const at::Tensor logp = at::log_softmax(x, 2).unsqueeze(0).expand(
          {targets.size(0), x.size(0), x.size(1), x.size(2)});
      const at::Tensor chosen =
          logp.gather(3, targets.clamp_min(0).unsqueeze(3)).squeeze(3);
      return -(chosen * targets.ge(0)).sum(2);
    });
  }
  bool has_adapter() const override { return parameters_.size() > 1; }
  void SetAdapterEnabled(bool enabled) override { enabled_ = enabled; }

  // The parameter that is trained.
  at::Tensor& trained() { return tensors_.back(); }
  const at::Tensor& table() const { return tensors_[0]; }

  int64_t positions = 32;
  double initial_shift = 0.0;
  std::vector<TokenInput> inputs;

 private:
  static double ValueOf(int index, int64_t i) {
    return std::sin(1.0 + index + 1.7 * static_cast<double>(i));
  }
  UnitRunner::Body Lookup() const {
    const at::Tensor rows =
        has_adapter() && enabled_ ? tensors_[0] + tensors_[1] : tensors_[0];
    return [rows](const at::Tensor& tokens) {
      return at::embedding(rows, tokens);
    };
  }

  std::vector<ParameterSpec> parameters_;
  const std::vector<std::string> units_ = {"lookup", "loss"};
  std::vector<at::Tensor> tensors_;
  bool enabled_ = true;
};

}  // namespace capstan::dpo

#endif  // CAPSTAN_PLUGINS_DPO_OBJECTIVE_FAKE_MODEL_H_
