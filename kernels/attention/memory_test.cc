// SPDX-License-Identifier: Apache-2.0
//
// Compares attention's plan with its actual allocations.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "kernels/attention/attention.h"
#include "kernels/memory_testing.h"

namespace capstan::kernels {
namespace {

void Compare(const AttentionShape& shape, int64_t length, at::ScalarType dtype,
             double bound) {
  const int64_t rows = shape.batch * length;
  const auto input = [&](int64_t heads) {
    return TrainedWeight(at::randn({rows, heads * shape.head_dim}).to(dtype));
  };
  const at::Tensor q = input(shape.heads);
  const at::Tensor k = input(shape.kv_heads), v = input(shape.kv_heads);
  // Its plan counts q, k and v among what backward frees; here they stay.
  const int64_t qkv =
      (q.numel() + 2 * k.numel()) * static_cast<int64_t>(q.element_size());
  MemoryLedger forward;
  PlanAttention(shape, rows, dtype, /*packed=*/false, &forward);
  MemoryLedger backward(forward.live() + qkv);
  PlanAttentionBackward(shape, rows, dtype, /*packed=*/false, &backward);
  OperatorMemory planned = MemoryOf(forward, backward);
  planned.backward -= qkv;
  // The first layer makes the mask, which the next one finds.
  const auto masks = c10::make_intrusive<AttentionMasks>();
  const auto attention = [&] {
    return Attention(q, k, v, shape, /*packing=*/nullptr, masks);
  };
  const OperatorMemory first = Measure(attention);
  const OperatorMemory next = Measure(attention);
  ExpectNear(planned, next, bound);
  EXPECT_EQ(first.kept - next.kept, AttentionMaskBytes(shape, length, dtype));
}

AttentionShape Limited(AttentionShape shape, double softcap, int64_t window) {
  shape.softcap = softcap;
  shape.window = window;
  return shape;
}

TEST(AttentionMemoryTest, OwnLoops) {
  Compare({4, 8, 4, 32, true}, 128, at::kFloat, 0.01);
  Compare({2, 4, 4, 16, false}, 200, at::kFloat, 0.01);
}

TEST(AttentionMemoryTest, SixteenBits) {
  Compare({4, 8, 4, 32, true}, 128, at::kBFloat16, 0.12);
  Compare({2, 4, 4, 32, false}, 200, at::kBFloat16, 0.12);
}

TEST(AttentionMemoryTest, OwnLoopsNeedNoMask) {
  Compare(Limited({4, 8, 4, 32, true}, 20.0, 16), 128, at::kFloat, 0.01);
}

TEST(AttentionMemoryTest, WindowsIn16Bits) {
  Compare(Limited({4, 8, 4, 32, true}, 0.0, 16), 128, at::kBFloat16, 0.12);
  Compare(Limited({4, 8, 4, 32, true}, 0.0, 128), 128, at::kBFloat16, 0.12);
}

TEST(AttentionMemoryTest, CappedScoresIn16Bits) {
  Compare(Limited({4, 8, 4, 32, true}, 20.0, 0), 128, at::kBFloat16, 0.03);
  Compare(Limited({4, 8, 8, 32, true}, 20.0, 16), 128, at::kBFloat16, 0.03);
  Compare(Limited({1, 8, 4, 32, true}, 20.0, 0), 256, at::kBFloat16, 0.03);
  Compare(Limited({1, 8, 8, 32, false}, 20.0, 0), 256, at::kBFloat16, 0.03);
}

}  // namespace
}  // namespace capstan::kernels
