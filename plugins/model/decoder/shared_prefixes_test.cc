// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/shared_prefixes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/model/decoder/bound_decoder_testing.h"
#include "plugins/model/decoder/decoder_testing.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan::decoder {
namespace {

constexpr int64_t kRows = 8, kLength = 48;
// Of each row, the number of tokens that its last target needs.
constexpr int64_t kEnds[kRows] = {38, 38, 33, 32, 46, 0, 36, 31};

// Answers of different lengths to prompts of 30 and 21 tokens, in turn; but row
// 5 has no targets, and row 7 is an answer to another prompt.
struct Texts {
  at::Tensor tokens;   // [kRows, kLength]
  at::Tensor targets;  // shifted
};

Texts MakeTexts() {
  const at::Tensor prompts[] = {at::randint(3, 500, {30}, at::kLong),
                                at::randint(3, 500, {21}, at::kLong)};
  Texts texts = {at::randint(3, 500, {kRows, kLength}, at::kLong),
                 at::full({kRows, kLength}, -100, at::kLong)};
  for (int64_t row = 0; row < kRows; ++row) {
    const at::Tensor& prompt = prompts[row % 2];
    const int64_t begin = prompt.size(0);
    const at::Tensor tokens = texts.tokens[row];
    if (row != 7) tokens.narrow(0, 0, begin).copy_(prompt);
    const int64_t end = kEnds[row];
    if (end == 0) continue;
    texts.targets[row]
        .narrow(0, begin - 1, end - begin + 1)
        .copy_(tokens.narrow(0, begin, end - begin + 1));
  }
  return texts;
}

TEST(SharedPrefixesTest, WhatIsComputedOnce) {
  at::manual_seed(3);
  const Texts texts = MakeTexts();
  const auto shared = SharedPrefixes::Find(texts.tokens, texts.targets, 0.7);
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(shared->places().numel(), 30 + 8 + 3 + 16 + 6 + 21 + 17 + 11 + 31);
  const at::Tensor tokens =
      texts.tokens.reshape({-1, 1}).index_select(0, shared->places());
  const at::Tensor whole = shared->ToAttention(tokens).view({kRows, kLength});
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t end = kEnds[row];
    EXPECT_TRUE(
        whole[row].narrow(0, 0, end).equal(texts.tokens[row].narrow(0, 0, end)))
        << row;
    EXPECT_TRUE(
        whole[row].narrow(0, end, kLength - end).eq(0).all().item<bool>());
  }
  EXPECT_TRUE(shared->positions().equal(shared->places() % kLength));
}

TEST(SharedPrefixesTest, NothingIsSharedWhereLittleIsSaved) {
  at::manual_seed(3);
  const at::Tensor tokens = at::randint(3, 500, {4, 32}, at::kLong);
  EXPECT_EQ(SharedPrefixes::Find(tokens, tokens, 0.9), nullptr);
  EXPECT_EQ(
      SharedPrefixes::Find(tokens, at::full({4, 32}, -100, at::kLong), 0.9),
      nullptr);
}

// Each function's backward is its transpose.
TEST(SharedPrefixesTest, BackwardsAreTransposes) {
  at::manual_seed(3);
  const Texts texts = MakeTexts();
  const auto shared = SharedPrefixes::Find(texts.tokens, texts.targets, 0.7);
  ASSERT_NE(shared, nullptr);
  const at::Tensor x = at::randn({shared->places().numel(), 4}, at::kDouble);
  const at::Tensor y = at::randn({kRows * kLength, 4}, at::kDouble);
  EXPECT_NEAR((shared->ToAttention(x) * y).sum().item<double>(),
              (shared->ToAttentionBackward(y) * x).sum().item<double>(), 1e-9);
  EXPECT_NEAR((shared->FromAttention(y) * x).sum().item<double>(),
              (shared->FromAttentionBackward(x) * y).sum().item<double>(),
              1e-9);
}

struct Result {
  at::Tensor log_probs;
  at::Tensor row_sums;
  std::vector<at::Tensor> gradients;
};

// `whole`: with positions each row is computed for itself.
Result Compute(Decoder* model, const Texts& texts,
               const std::vector<at::Tensor>& trained, bool whole) {
  PlainRunner runner;
  TokenInput input;
  input.tokens = texts.tokens;
  if (whole) input.positions = at::arange(kLength).expand({kRows, kLength});
  RowLosses& losses = *model->row_losses();
  Result result;
  at::Tensor entropy;
  result.log_probs =
      losses.TokenLogProbs(input, texts.targets, 1.0, &entropy, runner);
  result.row_sums =
      losses.CrossEntropyRows(input, texts.targets.unsqueeze(0), runner);
  at::manual_seed(11);
  const at::Tensor sum =
      (result.log_probs * at::randn(result.log_probs.sizes())).sum() +
      (result.row_sums * at::randn(result.row_sums.sizes())).sum();
  result.gradients = torch::autograd::grad({sum}, trained, {}, {},
                                           /*create_graph=*/false,
                                           /*allow_unused=*/true);
  return result;
}

void Check(const Json& json, at::ScalarType type, bool adapter,
           double tolerance) {
  at::manual_seed(7);
  std::vector<at::Tensor> parameters, trained;
  const auto model = BoundDecoder(json, type, adapter, &parameters);
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  const Texts texts = MakeTexts();
  const Result shared = Compute(model.get(), texts, trained, false);
  const Result whole = Compute(model.get(), texts, trained, true);
  const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_LE((a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<float>(),
              tolerance * b.abs().max().item<float>());
  };
  expect_near(shared.log_probs, whole.log_probs);
  expect_near(shared.row_sums, whole.row_sums);
  bool same = true;
  for (size_t i = 0; i < trained.size(); ++i) {
    const at::Tensor &ours = shared.gradients[i], &theirs = whole.gradients[i];
    ASSERT_EQ(ours.defined(), theirs.defined());
    if (!ours.defined()) continue;
    expect_near(ours, theirs);
    same = same && ours.equal(theirs);
  }
  EXPECT_FALSE(same) << "prefixes weren't shared";
}

TEST(SharedPrefixesTest, LossesAndGradientsAreThoseOfWholeRows) {
  for (const char* const family :
       {"llama31", "llama_biases", "qwen2", "qwen3", "phi3", "smollm3",
        "gemma2", "gemma3", "qwen3_moe"}) {
    SCOPED_TRACE(family);
    Check(GoldenConfig(family), at::kFloat, /*adapter=*/false, 2e-5);
  }
}

TEST(SharedPrefixesTest, WithAnAdapter) {
  Check(GoldenConfig("qwen3"), at::kFloat, /*adapter=*/true, 2e-5);
}

TEST(SharedPrefixesTest, In16Bits) {
  Check(GoldenConfig("llama31"), at::kBFloat16, /*adapter=*/false, 4e-2);
}

}  // namespace
}  // namespace capstan::decoder
