// SPDX-License-Identifier: Apache-2.0
//
// Rows of several documents: each gives the same as alone.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <utility>

#include "plugins/model/llama/llama_testing.h"

namespace capstan::llama {
namespace {

constexpr int64_t kVocab = 61;

// Documents of two rows, of 80 tokens each.
const std::vector<std::vector<int64_t>> kLengths = {{1, 5, 67, 1, 6}, {3, 77}};

class LlamaPackedTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  LlamaPackedTest() {
    Config config = SmallSizes();
    config.set_hidden_size(36);
    config.set_intermediate_size(50);
    config.set_vocab_size(kVocab);
    config.set_initializer_range(0.2);
    model_ = Make(config);
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      const ParameterSpec& spec = model_->parameters()[i];
      at::Tensor value = at::empty(spec.shape, at::kFloat);
      EXPECT_TRUE(model_
                      ->InitialValue(i, 5, 0, value.numel(),
                                     value.mutable_data_ptr<float>())
                      .ok());
      parameters_.push_back(value.to(GetParam()).requires_grad_(true));
    }
    model_->Bind(parameters_);
    at::manual_seed(3);
    std::vector<at::Tensor> rows, positions;
    for (const std::vector<int64_t>& lengths : kLengths) {
      for (int64_t length : lengths) {
        documents_.push_back(at::randint(kVocab, {1, length}, at::kLong));
        positions.push_back(at::arange(length).to(at::kLong));
      }
    }
    input_.tokens = at::cat(documents_, 1).view({2, -1});
    input_.positions = at::cat(positions).view({2, -1});
  }

  // Each token predicts the next one of its document.
  static at::Tensor Targets(const at::Tensor& document) {
    at::Tensor targets = at::full(document.sizes(), -100, at::kLong);
    const int64_t length = document.size(1);
    targets.narrow(1, 0, length - 1).copy_(document.narrow(1, 1, length - 1));
    return targets;
  }

  at::Tensor Logits(const TokenInput& input) {
    const at::AutoGradMode no_gradients(false);
    return model_->Logits(input, runner_);
  }

  // The loss; adds to the gradients.
  double Backward(const TokenInput& input, const at::Tensor& targets) {
    const at::Tensor loss = model_->CrossEntropySum(input, {targets}, runner_);
    loss.backward();
    return loss.item<double>();
  }

  std::vector<at::Tensor> TakeGradients() {
    std::vector<at::Tensor> gradients;
    for (at::Tensor& p : parameters_) {
      gradients.push_back(p.grad().to(at::kDouble));
      p.mutable_grad().reset();
    }
    return gradients;
  }

  std::unique_ptr<Llama> model_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> documents_;
  TokenInput input_;
  PlainRunner runner_;
};

TEST_P(LlamaPackedTest, LossAndGradientsAreTheSumOfItsDocuments) {
  std::vector<at::Tensor> targets;
  for (const at::Tensor& d : documents_) targets.push_back(Targets(d));
  const double packed =
      Backward(input_, at::cat(targets, 1).view(input_.tokens.sizes()));
  const std::vector<at::Tensor> gradients = TakeGradients();
  double alone = 0.0;
  std::vector<at::Tensor> sums;
  for (size_t d = 0; d < documents_.size(); ++d) {
    TokenInput input;
    input.tokens = documents_[d];
    alone += Backward(input, targets[d]);
    const std::vector<at::Tensor> more = TakeGradients();
    for (size_t i = 0; i < more.size(); ++i) {
      if (d == 0) sums.push_back(at::zeros_like(more[i]));
      sums[i] += more[i];
    }
  }
  const bool wide = GetParam() == at::kFloat;
  EXPECT_NEAR(packed / alone, 1.0, wide ? 1e-6 : 2e-3);
  for (size_t i = 0; i < sums.size(); ++i) {
    const double size = sums[i].norm().item<double>();
    EXPECT_LT((gradients[i] - sums[i]).norm().item<double>(),
              (wide ? 1e-6 : 2e-2) * size)
        << model_->parameters()[i].name;
  }
}

TEST_P(LlamaPackedTest, NoDocumentSeesAnother) {
  const at::Tensor before = Logits(input_);
  int64_t begin = 0;
  for (const at::Tensor& document : documents_) {
    const int64_t length = document.size(1);
    TokenInput changed = input_;
    changed.tokens = input_.tokens.clone();
    changed.tokens.view({-1})
        .narrow(0, begin, length)
        .add_(1)
        .remainder_(kVocab);
    const at::Tensor moved =
        (Logits(changed) != before).view({-1, kVocab}).any(1);
    EXPECT_TRUE(moved.narrow(0, begin, length).all().item<bool>());
    EXPECT_EQ(moved.sum().item<int64_t>(), length) << "at " << begin;
    begin += length;
  }
}

TEST_P(LlamaPackedTest, PositionsOfOneDocumentARowChangeNothing) {
  TokenInput plain;
  plain.tokens = input_.tokens;
  TokenInput whole = plain;
  whole.positions = at::arange(80).to(at::kLong).expand({2, 80});
  const at::Tensor wanted = Logits(plain), got = Logits(whole);
  if (GetParam() == at::kFloat) {
    EXPECT_TRUE(got.equal(wanted));
  } else {
    // ATen may split a batch's work differently from a row's.
    EXPECT_LT((got - wanted).abs().max().item<double>(), 0.05);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LlamaPackedTest,
                         ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param));
                         });

}  // namespace
}  // namespace capstan::llama
