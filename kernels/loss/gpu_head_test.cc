// SPDX-License-Identifier: Apache-2.0
//
// What the head and the embedding do on GPUs, on the CPU: products that sum in
// float32, into a strategy's sums, and chunks by the device's memory.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <tuple>

#include "kernels/context/wide_gradient_sink.h"
#include "kernels/layers/gpu_path_for_test.h"
#include "kernels/loss/seen_rows.h"
#include "kernels/loss/token_loss.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kRows = 23, kHidden = 12, kVocab = 40;

// The sum of one weight's gradients, of its dtype or, for 16 bits, float32.
class Sum final : public GradientSink, public WideGradientSink {
 public:
  explicit Sum(const at::Tensor& like)
      : wide_(like.scalar_type() != at::kFloat),
        sum_(at::full(like.sizes(), 99.0, at::kFloat)) {}
  Place Open(int) override { return wide_ ? Place() : Next(); }
  Place OpenWide(int) override { return wide_ ? Next() : Place(); }
  const at::Tensor& sum() const { return sum_; }

 private:
  Place Next() { return {sum_.variable_data(), opened_++ > 0}; }

  const bool wide_;
  const at::Tensor sum_;
  int opened_ = 0;
};

struct Setting {
  at::ScalarType type;
  bool tied, sink;
  int64_t chunks;
  double softcap;
};

// Two passes' gradients of the hidden rows (or, tied, of nothing else) and of
// the weight, given those of the loss.
void Check(const Setting& s) {
  SCOPED_TRACE(std::string(c10::toString(s.type)) + (s.tied ? " tied" : "") +
               (s.sink ? " sink " : " ") + std::to_string(s.chunks));
  at::manual_seed(3);
  const at::Tensor tokens = at::randint(kVocab, {kRows}, at::kLong);
  at::Tensor targets = at::randint(kVocab, {kRows}, at::kLong);
  targets[4] = -1;
  const at::Tensor weight =
      at::randn({kVocab, kHidden}).mul_(0.5).to(s.type).set_requires_grad(true);
  const at::Tensor x =
      at::randn({kRows, kHidden}).to(s.type).set_requires_grad(true);
  const at::Tensor exact_weight =
      weight.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor exact_x = x.detach().to(at::kDouble).set_requires_grad(true);
  Sum sum(weight);
  const WeightPlace place = {s.sink ? &sum : nullptr, 0};
  const int64_t bytes = (kRows + s.chunks - 1) / s.chunks * kVocab *
                        weight.element_size() * (s.softcap != 0.0 ? 5 : 1);
  for (const double factor : {0.3, 0.7}) {
    const TiedGradient tied =
        s.tied ? c10::make_intrusive<HeadGradient>() : TiedGradient();
    const at::Tensor hidden =
        s.tied ? Embedding(weight, tokens, tied, place) * x : x * 1.0;
    const at::Tensor loss = HeadCrossEntropySum(hidden, weight, targets, tied,
                                                bytes, place, {}, s.softcap);
    torch::autograd::backward({loss}, {at::full({}, factor)});
    if (s.sink) {
      EXPECT_EQ(weight.grad().defined(), s.type == at::kFloat);
      weight.mutable_grad().reset();  // as strategies take an alias
    }

    const at::Tensor rows =
        s.tied ? exact_weight.index_select(0, tokens) * exact_x : exact_x * 1.0;
    at::Tensor logits = rows.mm(exact_weight.t());
    if (s.softcap != 0.0) logits = at::tanh(logits / s.softcap) * s.softcap;
    const at::Tensor wanted =
        at::cross_entropy_loss(logits, targets.clamp_min(0), {}, 0)
            .masked_fill(targets < 0, 0.0)
            .sum();
    wanted.backward(at::full({}, factor, at::kDouble));
    const double bound = s.type == at::kFloat ? 1e-5 : 0.03;
    EXPECT_LT(Difference(loss.detach(), wanted.detach()), bound);
  }
  const double bound = s.type == at::kFloat      ? 1e-5
                       : s.type == at::kBFloat16 ? 0.02
                                                 : 0.003;
  EXPECT_LT(Difference(x.grad(), exact_x.grad()), bound);
  EXPECT_LT(Difference(s.sink ? sum.sum() : weight.grad(), exact_weight.grad()),
            bound);
}

TEST(GpuHeadTest, GradientsMatchDoublePrecision) {
  const GpuPathForTest gpu;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool tied : {false, true}) {
      for (const bool sink : {false, true}) {
        for (const int64_t chunks : {1, 3}) {
          Check({type, tied, sink, chunks, 0.0});
        }
      }
      Check({type, tied, true, 2, 4.0});
    }
  }
}

// As many chunks as one likes: the sum of the weight's gradient isn't rounded
// in between.
TEST(GpuHeadTest, ChunksAddInFloat32) {
  const GpuPathForTest gpu;
  at::manual_seed(5);
  const at::Tensor weight =
      at::randn({kVocab, kHidden}).to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor x = at::randn({256, kHidden}).to(at::kBFloat16);
  const at::Tensor targets = at::randint(kVocab, {256}, at::kLong);
  at::Tensor sums[2];
  for (const int chunks : {1, 64}) {
    Sum sum(weight);
    HeadCrossEntropySum(x, weight, targets, {}, 256 / chunks * kVocab * 2,
                        {&sum, 0})
        .backward();
    sums[chunks > 1] = sum.sum().to(at::kDouble);
  }
  EXPECT_LT(Difference(sums[1], sums[0]), 1e-6);
}

TEST(SeenRowsTest, OnAGpuTheirNumberHasFewValues) {
  EXPECT_EQ(SeenRowsOnGpu(0), 64);
  EXPECT_EQ(SeenRowsOnGpu(64), 64);
  EXPECT_EQ(SeenRowsOnGpu(65), 128);
  EXPECT_EQ(SeenRowsOnGpu(1024), 1024);
  EXPECT_EQ(SeenRowsOnGpu(1025), 1152);
  EXPECT_EQ(SeenRowsOnGpu(9000), 9216);
  for (int64_t n = 1024; n < 100000; n += 77) {
    EXPECT_GE(SeenRowsOnGpu(n), n);
    EXPECT_LE(SeenRowsOnGpu(n), n + n / 8);
  }
}

TEST(SeenRowsTest, OthersAreAddedThatHaveNoTarget) {
  const GpuPathForTest gpu;
  const at::Tensor hidden = at::ones({300, 2});
  at::Tensor targets = at::full({300}, -1, at::kLong);
  for (int64_t r = 5; r < 300; r += 4) targets[r] = r;
  const at::Tensor weights = at::arange(300, at::kFloat);
  const SeenRows seen = RowsToSee(hidden, targets, weights);
  ASSERT_EQ(seen.rows.numel(), 128);
  EXPECT_TRUE(at::equal(seen.targets, targets.index_select(0, seen.rows)));
  EXPECT_TRUE(at::equal(seen.weights, weights.index_select(0, seen.rows)));
  EXPECT_EQ(seen.targets.ge(0).sum().item<int64_t>(), 74);
  // Each once: gradients are copied to them.
  EXPECT_EQ(std::get<0>(at::_unique(seen.rows)).numel(), 128);
  // None has a target; most have.
  EXPECT_EQ(RowsToSee(hidden, at::full({300}, -1, at::kLong), {}).rows.numel(),
            64);
  targets.narrow(0, 0, 260).fill_(1);
  EXPECT_FALSE(RowsToSee(hidden, targets, weights).rows.defined());
}

// Where most rows have no target, loss and gradients are the same.
TEST(SeenRowsTest, TheHeadSkipsRows) {
  const GpuPathForTest gpu;
  constexpr int64_t kMany = 400;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool weighted : {false, true}) {
      SCOPED_TRACE(c10::toString(type));
      at::manual_seed(7);
      at::Tensor targets = at::full({kMany}, -1, at::kLong);
      for (int64_t r = 3; r < kMany; r += 7) targets[r] = r % kVocab;
      const at::Tensor weights =
          weighted ? at::rand({kMany}) + 0.5 : at::Tensor();
      const at::Tensor weight =
          at::randn({kVocab, kHidden}).to(type).set_requires_grad(true);
      const at::Tensor x =
          at::randn({kMany, kHidden}).to(type).set_requires_grad(true);
      const at::Tensor exact_weight =
          weight.detach().to(at::kDouble).set_requires_grad(true);
      const at::Tensor exact_x =
          x.detach().to(at::kDouble).set_requires_grad(true);
      const at::Tensor loss =
          HeadCrossEntropySum(x, weight, targets, {}, 0, {}, weights);
      loss.backward();
      at::Tensor each = at::cross_entropy_loss(exact_x.mm(exact_weight.t()),
                                               targets.clamp_min(0), {}, 0)
                            .masked_fill(targets < 0, 0.0);
      if (weighted) each = each * weights;
      const at::Tensor wanted = each.sum();
      wanted.backward();
      const double bound = type == at::kFloat ? 1e-5 : 0.02;
      EXPECT_LT(Difference(loss.detach(), wanted.detach()), bound);
      EXPECT_LT(Difference(x.grad(), exact_x.grad()), bound);
      EXPECT_LT(Difference(weight.grad(), exact_weight.grad()), bound);
      EXPECT_TRUE(x.grad()
                      .masked_select((targets < 0).unsqueeze(1))
                      .eq(0)
                      .all()
                      .item<bool>());
    }
  }
}

TEST(LogitsBytesTest, GoByTheDevice) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(LogitsBytes({}), kLogitsBytes);
  EXPECT_EQ(LogitsBytes({false, 80 * kGiB}), kLogitsBytes);
  EXPECT_EQ(LogitsBytes({true, 0}), kGiB);
  EXPECT_EQ(LogitsBytes({true, 8 * kGiB}), kGiB / 4);
  EXPECT_EQ(LogitsBytes({true, 24 * kGiB}), kGiB);
  EXPECT_EQ(LogitsBytes({true, 79 * kGiB}), 2 * kGiB);
}

// What a plan says of a GPU follows from the same sizes.
TEST(LogitsBytesTest, APlanForAGpuHasItsChunks) {
  TokenLossShape shape = {40000, 512, 50000, at::kBFloat16};
  shape.device = {true, int64_t{80} << 30};
  const int64_t logits = shape.rows * shape.vocab * 2;
  const LogitsPieces pieces =
      PiecesOf(shape.rows, shape.vocab * 2, LogitsBytes(shape.device));
  EXPECT_EQ(pieces.count, 2);
  MemoryLedger gpu;
  PlanHead(shape, &gpu);
  // Float32 gradients of the rows and the weight, and the last chunk.
  const int64_t wide = (shape.rows + shape.vocab) * shape.hidden * 4;
  EXPECT_EQ(gpu.live(), wide + pieces.last * shape.vocab * 2);
  EXPECT_LE(gpu.peak(), wide + logits);
}

}  // namespace
}  // namespace capstan::kernels
