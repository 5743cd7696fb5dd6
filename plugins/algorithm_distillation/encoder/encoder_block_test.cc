// SPDX-License-Identifier: Apache-2.0
//
// Compares the fused encoder block with the plain one, sequence by sequence,
// with dropout: both draw the same.
#include "plugins/algorithm_distillation/encoder/encoder_block.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/layers/gpu_path_for_test.h"

namespace capstan::kernels {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t width, heads, inner;
  bool last_only;
  double rate;
};

c10::intrusive_ptr<EncoderRows> RowsOf(const std::vector<int64_t>& lengths) {
  auto rows = c10::make_intrusive<EncoderRows>();
  rows->offsets = {0};
  std::vector<int64_t> last;
  for (int64_t length : lengths) {
    rows->offsets.push_back(rows->offsets.back() + length);
    last.push_back(rows->offsets.back() - 1);
  }
  rows->last = at::tensor(last, at::kLong);
  return rows;
}

at::Tensor Leaf(at::Tensor t) { return t.detach().requires_grad_(true); }

class EncoderBlockTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    const Case& c = GetParam();
    const int64_t e = c.width, f = c.inner;
    const std::vector<std::vector<int64_t>> shapes = {
        {3 * e, e}, {3 * e}, {e, e}, {e}, {f, e}, {f},
        {e, f},     {e},     {e},    {e}, {e},    {e}};
    for (int i = 0; i < kEncoderWeights; ++i) {
      weights_[i] = Leaf(at::randn(shapes[i]).mul(i < 8 ? 0.2 : 1.0));
    }
    options_.rows = RowsOf(c.lengths);
    options_.heads = c.heads;
    options_.last_only = c.last_only;
    options_.layer = 3;
    options_.max_length = 100;
    options_.dropout.rate = c.rate;
    options_.dropout.seed = 7;
    options_.dropout.samples =
        at::arange(static_cast<int64_t>(c.lengths.size())).mul(1000003).add(5);
    x_ = Leaf(at::randn({options_.rows->rows(), e}));
    factors_ = at::randn(
        {c.last_only ? options_.rows->batch() : options_.rows->rows(), e});
  }

  // Sequence b alone.
  EncoderBlockOptions Alone(int64_t b) const {
    EncoderBlockOptions options = options_;
    options.rows = RowsOf({options_.rows->length(b)});
    options.dropout.samples = options_.dropout.samples.narrow(0, b, 1);
    return options;
  }
  at::Tensor RowsAt(const at::Tensor& x, int64_t b) const {
    return x.narrow(0, options_.rows->offsets[b], options_.rows->length(b));
  }

  // Gradients of a sum of the output to x and weights.
  std::vector<at::Tensor> Gradients(const at::Tensor& out) {
    (out * factors_).sum().backward();
    std::vector<at::Tensor> gradients = {x_.grad()};
    x_.mutable_grad().reset();
    for (at::Tensor& w : weights_) {
      gradients.push_back(w.grad());
      w.mutable_grad().reset();
    }
    return gradients;
  }

  EncoderBlockWeights weights_;
  EncoderBlockOptions options_;
  at::Tensor x_;
  at::Tensor factors_;
};

TEST_P(EncoderBlockTest, FusedIsPlainOnEachSequence) {
  ASSERT_TRUE(CanFuseEncoderBlock(x_, x_.size(1), GetParam().inner));
  const at::Tensor fused = FusedEncoderBlock(x_, weights_, options_);
  std::vector<at::Tensor> parts;
  for (int64_t b = 0; b < options_.rows->batch(); ++b) {
    parts.push_back(PlainEncoderBlock(RowsAt(x_, b), weights_, Alone(b)));
  }
  const at::Tensor plain = at::cat(parts);
  EXPECT_LT((fused - plain).abs().max().item<double>(), 2e-5);
  const std::vector<at::Tensor> got = Gradients(fused);
  const std::vector<at::Tensor> wanted = Gradients(plain);
  for (size_t i = 0; i < got.size(); ++i) {
    const double size = wanted[i].abs().max().item<double>();
    EXPECT_LT((got[i] - wanted[i]).abs().max().item<double>(),
              2e-5 * (1.0 + size))
        << (i == 0 ? "x" : "weight ") << static_cast<int>(i) - 1;
  }
}

// There q, k and v are one product.
TEST_P(EncoderBlockTest, OnGpusTheSame) {
  const auto plain = [&] {
    std::vector<at::Tensor> parts;
    for (int64_t b = 0; b < options_.rows->batch(); ++b) {
      parts.push_back(PlainEncoderBlock(RowsAt(x_, b), weights_, Alone(b)));
    }
    return at::cat(parts);
  };
  const at::Tensor out = plain();
  const std::vector<at::Tensor> wanted = Gradients(out);
  const GpuPathForTest gpu;
  const at::Tensor there = plain();
  EXPECT_LT((there - out).abs().max().item<double>(), 2e-5);
  const std::vector<at::Tensor> got = Gradients(there);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT((got[i] - wanted[i]).abs().max().item<double>(),
              2e-5 * (1.0 + wanted[i].abs().max().item<double>()))
        << i;
  }
}

TEST_P(EncoderBlockTest, ASequenceDoesNotDependOnTheOthers) {
  const at::Tensor all = FusedEncoderBlock(x_, weights_, options_);
  for (int64_t b = 0; b < options_.rows->batch(); ++b) {
    const at::Tensor alone =
        FusedEncoderBlock(RowsAt(x_, b), weights_, Alone(b));
    const at::Tensor there =
        options_.last_only ? all.narrow(0, b, 1) : RowsAt(all, b);
    // MKL sums in a different order for other numbers of rows: 2.1e-6 was seen.
    EXPECT_LT((alone - there).abs().max().item<double>(), 4e-6) << b;
  }
}

TEST_P(EncoderBlockTest, WithoutGradientsIsTheSameInParts) {
  const at::Tensor wanted = FusedEncoderBlock(x_, weights_, options_).detach();
  const at::AutoGradMode no_gradients(false);
  EXPECT_TRUE(FusedEncoderBlock(x_, weights_, options_).equal(wanted));
  // The same sequences repeated, more than are processed at a time.
  const int64_t times = 10000 / x_.size(0) + 1;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < times; ++i) {
    const std::vector<int64_t>& more = GetParam().lengths;
    lengths.insert(lengths.end(), more.begin(), more.end());
  }
  EncoderBlockOptions options = options_;
  options.rows = RowsOf(lengths);
  options.dropout.samples = options_.dropout.samples.repeat({times});
  const at::Tensor many =
      FusedEncoderBlock(x_.detach().repeat({times, 1}), weights_, options);
  EXPECT_TRUE(many.allclose(wanted.repeat({times, 1}), 1e-5, 1e-6));
}

TEST_P(EncoderBlockTest, ThreadsShareTheWork) {
  const at::Tensor one = FusedEncoderBlock(x_, weights_, options_);
  const std::vector<at::Tensor> wanted = Gradients(one);
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const at::Tensor several = FusedEncoderBlock(x_, weights_, options_);
  const std::vector<at::Tensor> got = Gradients(several);
  at::set_num_threads(threads);
  EXPECT_TRUE(several.allclose(one, 1e-5, 1e-6));
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].allclose(wanted[i], 1e-4, 1e-4)) << i;
  }
}

constexpr double kNone = 0.0;
INSTANTIATE_TEST_SUITE_P(
    Shapes, EncoderBlockTest,
    testing::Values(
        Case{"ragged", {5, 80, 33, 1, 17}, 32, 4, 64, false, 0.1},
        Case{"ragged_last", {5, 80, 33, 1, 17}, 32, 4, 64, true, 0.1},
        Case{"no_dropout", {29, 80, 16}, 64, 4, 256, false, kNone},
        Case{"no_dropout_last", {29, 80, 16}, 64, 4, 256, true, kNone},
        Case{"groups", std::vector<int64_t>(12, 80), 64, 4, 256, false, 0.3},
        Case{"groups_last", std::vector<int64_t>(12, 80), 64, 4, 256, true,
             0.3},
        Case{"odd_heads", {40, 9}, 48, 4, 16, false, 0.1}),
    [](const auto& info) { return info.param.name; });

TEST(DropoutTest, RatesAndPlacesOfDraws) {
  DropoutDraws draws;
  draws.rate = 0.1;
  draws.seed = 3;
  draws.samples = at::arange(4);
  EXPECT_EQ(draws.threshold(), 6554);
  EXPECT_FLOAT_EQ(draws.factor(), 65536.0f / (65536.0f - 6554.0f));
  const at::Tensor ones = at::randn({4 * 50, 160}).fill_(1.0);
  const at::Tensor a = DropRows(ones, draws, 0, DropoutPlace::kInner);
  const double dropped = a.eq(0.0).sum().item<double>() / 32000.0;
  EXPECT_NEAR(dropped, 0.1, 0.006);
  EXPECT_FLOAT_EQ(a.max().item<float>(), draws.factor());
  const auto same = [&](const at::Tensor& b) {
    return a.eq(b).sum().item<double>() / 32000.0;
  };
  EXPECT_EQ(same(DropRows(ones, draws, 0, DropoutPlace::kInner)), 1.0);
  // Others agree where both keep or both drop: 0.82 of the time.
  EXPECT_NEAR(same(DropRows(ones, draws, 1, DropoutPlace::kInner)), 0.82, 0.01);
  EXPECT_NEAR(same(DropRows(ones, draws, 0, DropoutPlace::kOutput)), 0.82,
              0.01);
  draws.seed = 4;
  EXPECT_NEAR(same(DropRows(ones, draws, 0, DropoutPlace::kInner)), 0.82, 0.01);
}

TEST(DropoutTest, TriangleCountsTheGroupsOfShorterRows) {
  int64_t groups = 0;
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(DropoutTriangle(i), groups);
    groups += i / 16 + 1;
  }
}

}  // namespace
}  // namespace capstan::kernels
