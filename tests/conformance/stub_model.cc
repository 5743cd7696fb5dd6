// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/stub_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>

#include "base/random.h"

namespace capstan {
namespace conformance {
namespace {

enum { kEmbed, kHead };
constexpr int64_t kHidden = 8;

// All that the model needs of the past.
class Position final : public KvCache {
 public:
  int64_t length() const override { return length_; }
  void Advance(int64_t tokens) { length_ += tokens; }

 private:
  int64_t length_ = 0;
};

}  // namespace

StubModel::StubModel(bool causal)
    : causal_(causal), units_({"embed", "head"}), specs_(2) {
  for (const int i : {kEmbed, kHead}) {
    specs_[i].name = units_[i] + ".weight";
    specs_[i].shape = {kStubVocabulary, kHidden};
    specs_[i].unit = i;
    const at::Tensor value = at::empty(specs_[i].shape, at::kFloat);
    InitialValue(i, /*seed=*/1, 0, specs_[i].numel(),
                 value.mutable_data_ptr<float>())
        .IgnoreError();
    bound_.push_back(value.set_requires_grad(true));
  }
}

absl::Status StubModel::InitialValue(int index, uint64_t seed, int64_t begin,
                                     int64_t count, float* out) const {
  FillNormal(RandomKey(seed, specs_[index].name), begin, count, 0.0f, 0.5f,
             out);
  return absl::OkStatus();
}

at::Tensor StubModel::Embedded(const TokenInput& input,
                               UnitRunner& runner) const {
  return runner.Run(kEmbed, input.tokens,
                    [embed = bound_[kEmbed]](const at::Tensor& tokens) {
                      return at::embedding(embed, tokens);
                    });
}

at::Tensor StubModel::Logits(const TokenInput& input, UnitRunner& runner) {
  if (input.cache != nullptr) {
    static_cast<Position*>(input.cache)->Advance(input.tokens.size(1));
  }
  return runner.Run(kHead, Embedded(input, runner),
                    [head = bound_[kHead]](const at::Tensor& x) {
                      return at::matmul(x, head.t());
                    });
}

at::Tensor StubModel::CrossEntropySum(const TokenInput& input,
                                      const TokenTargets& targets,
                                      UnitRunner& runner) {
  return runner.Run(kHead, Embedded(input, runner),
                    [head = bound_[kHead], targets](const at::Tensor& x) {
                      at::Tensor losses =
                          at::log_softmax(at::matmul(x, head.t()), -1)
                              .gather(2,
                                      targets.tokens.clamp_min(0).unsqueeze(2))
                              .squeeze(2)
                              .neg()
                              .mul(targets.tokens.ge(0));
                      if (targets.weights.defined())
                        losses = losses * targets.weights;
                      return losses.sum();
                    });
}

absl::StatusOr<std::unique_ptr<KvCache>> StubModel::NewCache(int64_t,
                                                             int64_t) const {
  return std::make_unique<Position>();
}

}  // namespace conformance
}  // namespace capstan
