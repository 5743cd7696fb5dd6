// SPDX-License-Identifier: Apache-2.0
//
// Attention and its gradients on the host, in float32.
#ifndef CAPSTAN_TESTING_STANDIN_OPERATORS_ATTENTION_MATH_H_
#define CAPSTAN_TESTING_STANDIN_OPERATORS_ATTENTION_MATH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan::standin {

// Which keys a query sees: of M queries and N keys, query i sees key j where
// i + shift - left <= j <= i + shift + right. Negative: no limit.
struct Visible {
  int64_t shift = 0;
  int64_t left = -1;
  int64_t right = -1;  // 0: causal
};

// One or more sequences. q: [B, H, M, D]; k: [B, G, N, D]; v: [B, G, N, E], G
// dividing H; any strides, float dtypes. bias: [B, H, M, N], added to scores;
// may be undefined.
struct AttentionInputs {
  at::Tensor q, k, v, bias;
  Visible visible;
  double scale = 1.0;
};

// Writes softmax(q k^T * scale + bias) v to out [B, H, M, E], rounded once, and
// the logarithms of the rows' sums to log_sums [B, H, M] float32 (undefined:
// not wanted). A query that sees no key gets 0 and -infinity.
void AttentionForward(const AttentionInputs& inputs, at::Tensor out,
                      at::Tensor log_sums);

// Writes the gradients, undefined ones not; d_bias has bias's shape.
void AttentionBackward(const AttentionInputs& inputs, const at::Tensor& d_out,
                       const at::Tensor& out, const at::Tensor& log_sums,
                       at::Tensor dq, at::Tensor dk, at::Tensor dv,
                       at::Tensor d_bias);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_OPERATORS_ATTENTION_MATH_H_
