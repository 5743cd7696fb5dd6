// SPDX-License-Identifier: Apache-2.0
//
// Causal attention with dropout for one head of one sequence, on float32 memory
// on the CPU, for encoder_block.cc.
#ifndef CAPSTAN_KERNELS_ENCODER_ENCODER_ATTENTION_H_
#define CAPSTAN_KERNELS_ENCODER_ENCODER_ATTENTION_H_

#include <cstdint>

namespace capstan::kernels {

// Rows of head_dim floats, q_stride and kv_stride apart. The queries are at the
// last of the keys' positions: all of them, or only the last.
struct EncoderHead {
  int64_t queries = 0, keys = 0, head_dim = 0;
  int64_t q_stride = 0, kv_stride = 0, out_stride = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  // Dropout bits, each row's groups after the previous row's; null: none.
  const uint16_t* keep = nullptr;
  float factor = 1.0f;
};

// Floats of `space` that both functions need.
int64_t EncoderAttentionSpace(int64_t keys, int64_t head_dim);

// out: [queries, head_dim], out_stride apart; log_sum_exp: [queries].
void EncoderAttention(const EncoderHead& head, float* out, float* log_sum_exp,
                      float* space);

struct EncoderHeadGradients {
  const float* out = nullptr;
  const float* d_out = nullptr;  // as out
  const float* log_sum_exp = nullptr;
  float* dq = nullptr;  // overwritten; laid out as q, k, v
  float* dk = nullptr;
  float* dv = nullptr;
};
void EncoderAttentionBackward(const EncoderHead& head,
                              const EncoderHeadGradients& p, float* space);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ENCODER_ENCODER_ATTENTION_H_
