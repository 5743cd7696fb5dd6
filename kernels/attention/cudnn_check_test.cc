// SPDX-License-Identifier: Apache-2.0
//
// The comparison of cuDNN's attention with the flash kernels. No CPU has
// either: registered for the CPU under their names are, for the flash kernels,
// the loops of attention_loops.cc, which round probabilities as those do, and
// for cuDNN the formula in float64, rounded once at the end, with a fault.
#include "kernels/attention/cudnn_check.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "kernels/attention/plain_attention_for_test.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

enum class Fault { kNone, kForward, kBackward, kLastGradient, kNan };
Fault fault = Fault::kNone;

// [1, heads, T, head_dim] to [T, heads * head_dim], and back.
at::Tensor Rows(const at::Tensor& x) { return x.transpose(1, 2).flatten(2)[0]; }
at::Tensor Heads(const at::Tensor& rows, const at::Tensor& like) {
  return rows.view({1, like.size(2), like.size(1), like.size(3)})
      .transpose(1, 2)
      .to(like.scalar_type());
}

at::Tensor Compute(const Tensors& in, const AttentionShape& shape, bool exact) {
  if (!exact) return Attention(in[0], in[1], in[2], shape);
  return PlainAttention(in, shape, Positions({{in[0].size(0)}}));
}

// The output of the three, or with `d_out` their gradients.
Tensors Run(const Tensors& heads_first, bool causal,
            std::optional<double> scale, bool exact,
            const at::Tensor& d_out = {}) {
  const at::Tensor &q = heads_first[0], &k = heads_first[1];
  const AttentionShape shape = {1,         q.size(1), k.size(1),
                                q.size(3), causal,    scale.value_or(0.0)};
  // The dispatcher has switched autograd off.
  const c10::impl::LocalDispatchKeySet keys =
      c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard on(
      keys.included_, keys.excluded_ - c10::autograd_dispatch_keyset);
  const at::AutoGradMode gradients(d_out.defined());
  Tensors in;
  for (const at::Tensor& t : heads_first) {
    in.push_back(Rows(t)
                     .to(exact ? at::kDouble : t.scalar_type())
                     .detach()
                     .clone()
                     .requires_grad_(d_out.defined()));
  }
  const at::Tensor out = Compute(in, shape, exact);
  if (!d_out.defined()) return {Heads(out, q)};
  Tensors found =
      torch::autograd::grad({out}, in, {Rows(d_out).to(out.scalar_type())});
  for (size_t i = 0; i < found.size(); ++i) {
    found[i] = Heads(found[i], heads_first[i]);
  }
  return found;
}

using Forward =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
               c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Forward Returned(const at::Tensor& out) {
  const at::Tensor none = at::empty({0});
  return {out, none, none, none, 0, 0, none, none, none};
}

Forward FlashForward(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, double, bool causal, bool,
                     std::optional<double> scale) {
  return Returned(Run({q, k, v}, causal, scale, /*exact=*/false)[0]);
}

Backward FlashBackward(const at::Tensor& d_out, const at::Tensor& q,
                       const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, int64_t, int64_t, double, bool causal,
                       const at::Tensor&, const at::Tensor&,
                       std::optional<double> scale) {
  const Tensors d = Run({q, k, v}, causal, scale, /*exact=*/false, d_out);
  return {d[0], d[1], d[2]};
}

Forward CudnnForward(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const std::optional<at::Tensor>&,
                     bool sums, double, bool causal, bool,
                     std::optional<double> scale) {
  EXPECT_TRUE(sums);
  TORCH_CHECK(fault != Fault::kForward, "no valid execution plans");
  at::Tensor out = Run({q, k, v}, causal, scale, /*exact=*/true)[0];
  if (fault == Fault::kNan) {
    out[0][0][0][0] = std::numeric_limits<float>::quiet_NaN();
  }
  return Returned(out);
}

Backward CudnnBackward(const at::Tensor& d_out, const at::Tensor& q,
                       const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, int64_t, int64_t, double, bool causal,
                       std::optional<double> scale) {
  TORCH_CHECK(fault != Fault::kBackward, "no valid execution plans\nat line 1");
  const Tensors d = Run({q, k, v}, causal, scale, /*exact=*/true, d_out);
  if (fault == Fault::kLastGradient) d[0][0][0][-1].zero_();
  return {d[0], d[1], d[2]};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_dot_product_flash_attention", TORCH_FN(FlashForward));
  library.impl("_scaled_dot_product_flash_attention_backward",
               TORCH_FN(FlashBackward));
  library.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(CudnnForward));
  library.impl("_scaled_dot_product_cudnn_attention_backward",
               TORCH_FN(CudnnBackward));
}

std::string FaultOf(Fault planted, const AttentionShape& shape,
                    at::ScalarType type, int64_t length = 2 * 128 + 65) {
  fault = planted;
  return CudnnAttentionFault(shape, length, at::TensorOptions(type));
}

// Heads on keys of their own and in a group; a scale.
const AttentionShape kShapes[] = {{1, 2, 2, 64},
                                  {1, 4, 1, 128},
                                  {1, 3, 1, 64, /*causal=*/false},
                                  {1, 2, 1, 64, true, 0.25}};

TEST(CudnnCheckTest, RoundingIsNoFault) {
  for (const AttentionShape& shape : kShapes) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      EXPECT_EQ(FaultOf(Fault::kNone, shape, type), "");
      EXPECT_EQ(FaultOf(Fault::kNone, shape, type, 2 * 128), "");
    }
  }
}

TEST(CudnnCheckTest, NamesTheFault) {
  for (const AttentionShape& shape : kShapes) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      for (const Fault planted : {Fault::kForward, Fault::kBackward}) {
        EXPECT_EQ(FaultOf(planted, shape, type),
                  "it refuses: no valid execution plans");
      }
      // Of one token's head, whose gradient is one of the smaller ones.
      EXPECT_THAT(FaultOf(Fault::kLastGradient, shape, type),
                  AllOf(StartsWith("its gradient to q differs from theirs by "),
                        HasSubstr(" of its size, where rounding explains 0.")));
      EXPECT_THAT(FaultOf(Fault::kNan, shape, type),
                  AllOf(StartsWith("its output differs"), HasSubstr("nan")));
    }
  }
}

}  // namespace
}  // namespace capstan::kernels
