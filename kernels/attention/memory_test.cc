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
  ExpectNear(planned, Measure([&] { return Attention(q, k, v, shape); }),
             bound);
}

TEST(AttentionMemoryTest, OwnLoops) {
  Compare({4, 8, 4, 32, true}, 128, at::kFloat, 0.01);
  Compare({2, 4, 4, 16, false}, 200, at::kFloat, 0.01);
}

TEST(AttentionMemoryTest, SixteenBits) {
  Compare({4, 8, 4, 32, true}, 128, at::kBFloat16, 0.12);
  Compare({2, 4, 4, 32, false}, 200, at::kBFloat16, 0.12);
}

}  // namespace
}  // namespace capstan::kernels
