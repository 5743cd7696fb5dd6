// SPDX-License-Identifier: Apache-2.0
//
// Compares an encoder block's plan with its actual allocations.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "kernels/layers/gpu_path_for_test.h"
#include "kernels/memory_testing.h"
#include "plugins/algorithm_distillation/encoder/encoder_block.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kBatch = 32, kLength = 80, kWidth = 64, kInner = 256;

EncoderBlockShape Shape(at::ScalarType dtype, bool last_only, bool dropout) {
  return {kBatch,      kLength, kWidth,    kInner,
          /*heads=*/4, dtype,   last_only, dropout};
}

OperatorMemory Measured(const EncoderBlockShape& s) {
  const auto weight = [&](at::IntArrayRef shape) {
    return TrainedWeight((at::randn(shape) * 0.1).to(s.dtype));
  };
  const EncoderBlockWeights weights = {weight({3 * kWidth, kWidth}),
                                       weight({3 * kWidth}),
                                       weight({kWidth, kWidth}),
                                       weight({kWidth}),
                                       weight({kInner, kWidth}),
                                       weight({kInner}),
                                       weight({kWidth, kInner}),
                                       weight({kWidth}),
                                       weight({kWidth}),
                                       weight({kWidth}),
                                       weight({kWidth}),
                                       weight({kWidth})};
  auto rows = c10::make_intrusive<EncoderRows>();
  for (int64_t b = 0; b <= kBatch; ++b) rows->offsets.push_back(b * kLength);
  rows->last = at::arange(kBatch) * kLength + kLength - 1;
  EncoderBlockOptions options;
  options.rows = rows;
  options.heads = s.heads;
  options.last_only = s.last_only;
  options.max_length = kLength;
  if (s.dropout) options.dropout = {0.1, /*seed=*/1, at::arange(kBatch)};
  const at::Tensor x =
      at::randn({s.rows(), kWidth}).to(s.dtype).set_requires_grad(true);
  return Measure([&] {
    return s.fused() ? FusedEncoderBlock(x, weights, options)
                     : PlainEncoderBlock(x, weights, options);
  });
}

TEST(EncoderMemoryTest, FusedBlock) {
  at::set_num_threads(1);
  for (const bool last_only : {false, true}) {
    for (const bool dropout : {false, true}) {
      const EncoderBlockShape s = Shape(at::kFloat, last_only, dropout);
      ASSERT_TRUE(s.fused());
      const OperatorMemory planned = PlanEncoderBlock(s),
                           measured = Measured(s);
      EXPECT_EQ(planned.kept, measured.kept);
      EXPECT_EQ(planned.forward, measured.forward);
      // The plan allows for an output gradient that isn't contiguous.
      EXPECT_EQ(planned.backward - s.Bytes(s.queries(), kWidth),
                measured.backward);
    }
  }
}

TEST(EncoderMemoryTest, PlainBlock) {
  const EncoderBlockShape s = Shape(at::kBFloat16, false, true);
  ASSERT_FALSE(s.fused());
  // What LibTorch's backward allocates differs by processor: with AVX2 alone
  // the plan is a quarter of the largest peak above it.
  ExpectNear(PlanEncoderBlock(s), Measured(s), 0.3);
}

// The same nodes as on a GPU, where dropout is another one.
TEST(EncoderMemoryTest, OnGpus) {
  const GpuPathForTest gpu;
  for (const bool last_only : {false, true}) {
    SCOPED_TRACE(last_only);
    EncoderBlockShape s = Shape(at::kFloat, last_only, /*dropout=*/false);
    s.gpu = true;
    OperatorMemory planned = PlanEncoderBlock(s);
    // The test keeps the output's gradient, too, which others free.
    planned.backward += s.Bytes(s.queries(), kWidth);
    ExpectNear(planned, Measured(s), 0.03);
  }
}

}  // namespace
}  // namespace capstan::kernels
