// SPDX-License-Identifier: Apache-2.0
//
// In a deterministic run a token's log-probability has the same bits when the
// text is written, token by token beside others, and when it is trained on.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/loss/tokens.h"
#include "kernels/strict_products_for_test.h"
#include "plugins/model/decoder/bound_decoder_testing.h"
#include "plugins/model/decoder/decoder_testing.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {
namespace {

constexpr int64_t kNew = 70;
const std::vector<int64_t> kPrompts = {3, 90, 1, 33, 64};

// What is computed twice, each time with the same weights.
class ExactDecodingTest : public testing::Test {
 protected:
  void SetUp() override {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::manual_seed(7);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
  }

  // Writes greedy texts, those of prompts with an even number twice from the
  // first token on, and keeps each token's log-probability.
  void Write(Decoder* model, double temperature) {
    const at::NoGradGuard no_gradients;
    Texts open;
    for (const int64_t length : kPrompts) {
      const at::Tensor ids = at::randint(3, 500, {length}, at::kLong);
      const int64_t* const id = ids.const_data_ptr<int64_t>();
      open.emplace_back(id, id + length);
    }
    const auto together = ContinueTogether(model, open, kNew, runner_);
    ASSERT_TRUE(together.ok()) << together.status();
    std::vector<std::vector<float>> open_log_probs(open.size());
    bool first = true;
    const auto extend = [&](const at::Tensor& logits,
                            std::vector<int64_t>* rows) -> absl::Status {
      const Texts before = std::exchange(open, {});
      const auto before_log_probs = std::exchange(open_log_probs, {});
      for (size_t row = 0; row < before.size(); ++row) {
        const at::Tensor of_row = logits.select(0, row).clone();
        // Rows end at different lengths.
        const bool ends = !first && (row + before[row].size()) % 37 == 0;
        for (int copy = 0; copy < (first && row % 2 == 0 ? 2 : 1); ++copy) {
          const at::Tensor next = of_row.argsort(-1, true)[copy];
          std::vector<int64_t> text = before[row];
          std::vector<float> log_probs = before_log_probs[row];
          text.push_back(next.item<int64_t>());
          log_probs.push_back(kernels::LogProbs(of_row.unsqueeze(0).clone(),
                                                next.view({1}), temperature,
                                                nullptr)
                                  .item<float>());
          if (ends) {
            texts_.push_back(std::move(text));
            log_probs_.push_back(std::move(log_probs));
            continue;
          }
          open.push_back(std::move(text));
          open_log_probs.push_back(std::move(log_probs));
          rows->push_back(static_cast<int64_t>(row));
        }
      }
      first = false;
      return absl::OkStatus();
    };
    ASSERT_TRUE(
        DecodeLoop(
            together->get(), kNew, [] { return false; }, runner_, &open, extend)
            .ok());
    for (size_t row = 0; row < open.size(); ++row) {
      texts_.push_back(open[row]);
      log_probs_.push_back(open_log_probs[row]);
    }
    ASSERT_GT(texts_.size(), kPrompts.size());
  }

  // The greatest difference in training, `rows` texts at a time.
  float Difference(Decoder* model, double temperature, size_t rows) {
    float most = 0.0f;
    for (size_t begin = 0; begin < texts_.size(); begin += rows) {
      const size_t end = std::min(begin + rows, texts_.size());
      size_t length = 0;
      for (size_t i = begin; i < end; ++i) {
        length = std::max(length, texts_[i].size());
      }
      TokenInput input;
      input.tokens = at::full(
          {static_cast<int64_t>(end - begin), static_cast<int64_t>(length)}, 0,
          at::kLong);
      const at::Tensor targets =
          at::full(input.tokens.sizes(), -100, at::kLong);
      for (size_t i = begin; i < end; ++i) {
        const std::vector<int64_t>& text = texts_[i];
        const size_t prompt = text.size() - log_probs_[i].size();
        int64_t* const tokens = input.tokens[i - begin].data_ptr<int64_t>();
        int64_t* const target = targets[i - begin].data_ptr<int64_t>();
        std::copy(text.begin(), text.end(), tokens);
        std::copy(text.begin() + prompt, text.end(), target + prompt - 1);
      }
      at::Tensor entropy;
      const at::Tensor found = model->row_losses()->TokenLogProbs(
          input, targets, temperature, &entropy, runner_);
      EXPECT_TRUE(found.requires_grad());
      for (size_t i = begin; i < end; ++i) {
        const size_t prompt = texts_[i].size() - log_probs_[i].size();
        for (size_t t = 0; t < log_probs_[i].size(); ++t) {
          const float there = found[i - begin][prompt - 1 + t].item<float>();
          const float difference = std::abs(there - log_probs_[i][t]);
          if (!(difference <= most)) most = difference;
        }
      }
    }
    return most;
  }

  void Check(const Json& json, at::ScalarType type, bool adapter,
             double temperature = 1.0) {
    texts_.clear();
    log_probs_.clear();
    const auto model = BoundDecoder(json, type, adapter);
    ASSERT_NO_FATAL_FAILURE(Write(model.get(), temperature));
    for (const size_t rows : {1, 3, 100}) {
      EXPECT_EQ(Difference(model.get(), temperature, rows), 0.0f)
          << rows << " rows at a time";
    }
  }

  PlainRunner runner_;
  Texts texts_;
  std::vector<std::vector<float>> log_probs_;  // of each text's new tokens
};

TEST_F(ExactDecodingTest, WritingEqualsTraining) {
  for (const char* const family : {"llama31", "llama_biases", "qwen2", "qwen3",
                                   "phi3", "smollm3", "gemma2", "gemma3"}) {
    SCOPED_TRACE(family);
    Check(GoldenConfig(family), at::kFloat, /*adapter=*/false);
  }
}

TEST_F(ExactDecodingTest, WithTemperature) {
  Check(GoldenConfig("qwen3"), at::kFloat, /*adapter=*/false, 0.7);
}

TEST_F(ExactDecodingTest, WithAnAdapter) {
  Check(GoldenConfig("qwen3"), at::kFloat, /*adapter=*/true);
}

TEST_F(ExactDecodingTest, In16Bits) {
  Check(GoldenConfig("qwen3"), at::kBFloat16, /*adapter=*/false);
  Check(GoldenConfig("llama31"), at::kHalf, /*adapter=*/true);
}

TEST_F(ExactDecodingTest, OfExperts) {
  Check(GoldenConfig("qwen3_moe"), at::kFloat, /*adapter=*/false);
}

}  // namespace
}  // namespace capstan::decoder
