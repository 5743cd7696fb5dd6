// SPDX-License-Identifier: Apache-2.0
//
// The model that objectives are tested on: each token by itself predicts the
// next, from a vocabulary as large as that of bytes with special tokens.
#ifndef CAPSTAN_TESTS_CONFORMANCE_STUB_MODEL_H_
#define CAPSTAN_TESTS_CONFORMANCE_STUB_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/model.h"

namespace capstan {
namespace conformance {

constexpr int64_t kStubVocabulary = 300;
constexpr int64_t kStubPositions = 64;
constexpr int64_t kStubEos = 297;
constexpr int64_t kStubMask = 299;  // of the model that isn't causal

class StubModel final : public Model, public TokenModel {
 public:
  // Bound to its initial values.
  explicit StubModel(bool causal);

  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override;
  void Bind(std::vector<at::Tensor> parameters) override {
    bound_ = std::move(parameters);
  }
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }
  TokenModel* token_model() override { return this; }

  int64_t vocab_size() const override { return kStubVocabulary; }
  int64_t max_positions() const override { return kStubPositions; }
  bool causal() const override { return causal_; }
  int64_t eos_token() const override { return kStubEos; }
  int64_t mask_token() const override { return causal_ ? -1 : kStubMask; }
  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override;
  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override;
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override;

 private:
  at::Tensor Embedded(const TokenInput& input, UnitRunner& runner) const;

  const bool causal_;
  const std::vector<std::string> units_;
  std::vector<ParameterSpec> specs_;
  std::vector<at::Tensor> bound_;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_STUB_MODEL_H_
