// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/exchanged.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "kernels/fast_path.h"
#include "kernels/view_of.h"

namespace capstan::kernels {
namespace {

template <typename T>
void CopyTo(const at::Tensor& from, T* to) {
  const at::Tensor dense = from.contiguous();
  std::memcpy(to, dense.const_data_ptr(), dense.nbytes());
}

// Of this rank's heads.
AttentionShape PartOf(AttentionShape shape, const AttentionExchange& exchange) {
  shape.heads /= exchange.ranks();
  shape.kv_heads /= exchange.ranks();
  return shape;
}

}  // namespace

AttentionExchange::~AttentionExchange() = default;

template <typename T>
void ExchangedAttentionForward(AttentionExchange& exchange,
                               const AttentionShape& shape, int64_t rows,
                               const PackedRows* packing, const T* q,
                               const T* k, const T* v, T* out,
                               ExchangedKept* kept) {
  const int64_t width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  const at::Tensor part_q = exchange.ToAttention(ViewOf(q, rows, width));
  const at::Tensor part_k = exchange.ToAttention(ViewOf(k, rows, kv_width));
  const at::Tensor part_v = exchange.ToAttention(ViewOf(v, rows, kv_width));
  const at::Tensor part_out = at::empty(part_q.sizes(), part_q.options());
  const AttentionShape part = PartOf(shape, exchange);
  const at::Tensor log_sum_exp =
      at::empty({part_q.size(0) * part.heads}, at::kFloat);
  AttentionForward<T>({part, part_q.size(0), packing}, ReadAs<T>(part_q),
                      ReadAs<T>(part_k), ReadAs<T>(part_v),
                      WriteAs<T>(part_out),
                      log_sum_exp.mutable_data_ptr<float>());
  CopyTo(exchange.FromAttention(part_out), out);
  *kept = {part_q, part_k, part_v, part_out, log_sum_exp};
}

template <typename T>
void ExchangedAttentionBackward(AttentionExchange& exchange,
                                const AttentionShape& shape, int64_t rows,
                                const PackedRows* packing,
                                const AttentionBackwardBuffers<T>& buffers,
                                const ExchangedKept& kept) {
  const auto& [q, k, v, out, log_sum_exp] = kept;
  const at::Tensor d_out = exchange.FromAttentionBackward(
      ViewOf(buffers.d_out, rows, shape.heads * shape.head_dim));
  const at::Tensor dq = at::empty(q.sizes(), q.options());
  const at::Tensor dk = at::empty(k.sizes(), k.options());
  const at::Tensor dv = at::empty(v.sizes(), v.options());
  AttentionBackward<T>(
      {PartOf(shape, exchange), q.size(0), packing},
      {ReadAs<T>(q), ReadAs<T>(k), ReadAs<T>(v), ReadAs<T>(out),
       ReadAs<T>(d_out), log_sum_exp.const_data_ptr<float>(), WriteAs<T>(dq),
       WriteAs<T>(dk), WriteAs<T>(dv)});
  CopyTo(exchange.ToAttentionBackward(dq), buffers.dq);
  CopyTo(exchange.ToAttentionBackward(dk), buffers.dk);
  CopyTo(exchange.ToAttentionBackward(dv), buffers.dv);
}

#define CAPSTAN_EXCHANGED(T)                                                 \
  template void ExchangedAttentionForward<T>(                                \
      AttentionExchange&, const AttentionShape&, int64_t, const PackedRows*, \
      const T*, const T*, const T*, T*, ExchangedKept*);                     \
  template void ExchangedAttentionBackward<T>(                               \
      AttentionExchange&, const AttentionShape&, int64_t, const PackedRows*, \
      const AttentionBackwardBuffers<T>&, const ExchangedKept&);
CAPSTAN_EXCHANGED(float)
CAPSTAN_EXCHANGED(Bf16)
CAPSTAN_EXCHANGED(Fp16)
#undef CAPSTAN_EXCHANGED

}  // namespace capstan::kernels
