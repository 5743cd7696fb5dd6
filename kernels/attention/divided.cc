// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/divided.h"

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
AttentionShape PartOf(AttentionShape shape, const HeadExchange& exchange) {
  shape.heads /= exchange.ranks();
  shape.kv_heads /= exchange.ranks();
  return shape;
}

}  // namespace

HeadExchange::~HeadExchange() = default;

template <typename T>
void DividedAttentionForward(HeadExchange& exchange,
                             const AttentionShape& shape, int64_t rows,
                             const PackedRows* packing, const T* q, const T* k,
                             const T* v, T* out, float* log_sum_exp,
                             DividedKept* kept) {
  const int64_t width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  const at::Tensor part_q = exchange.ToHeads(ViewOf(q, rows, width));
  const at::Tensor part_k = exchange.ToHeads(ViewOf(k, rows, kv_width));
  const at::Tensor part_v = exchange.ToHeads(ViewOf(v, rows, kv_width));
  const at::Tensor part_out = at::empty(part_q.sizes(), part_q.options());
  AttentionForward<T>({PartOf(shape, exchange), part_q.size(0), packing},
                      ReadAs<T>(part_q), ReadAs<T>(part_k), ReadAs<T>(part_v),
                      WriteAs<T>(part_out), log_sum_exp);
  CopyTo(exchange.ToRows(part_out), out);
  *kept = {part_q, part_k, part_v, part_out};
}

template <typename T>
void DividedAttentionBackward(HeadExchange& exchange,
                              const AttentionShape& shape, int64_t rows,
                              const PackedRows* packing,
                              const AttentionBackwardBuffers<T>& buffers,
                              const DividedKept& kept) {
  const auto& [q, k, v, out] = kept;
  const at::Tensor d_out = exchange.ToHeads(
      ViewOf(buffers.d_out, rows, shape.heads * shape.head_dim));
  const at::Tensor dq = at::empty(q.sizes(), q.options());
  const at::Tensor dk = at::empty(k.sizes(), k.options());
  const at::Tensor dv = at::empty(v.sizes(), v.options());
  AttentionBackward<T>({PartOf(shape, exchange), q.size(0), packing},
                       {ReadAs<T>(q), ReadAs<T>(k), ReadAs<T>(v),
                        ReadAs<T>(out), ReadAs<T>(d_out), buffers.log_sum_exp,
                        WriteAs<T>(dq), WriteAs<T>(dk), WriteAs<T>(dv)});
  CopyTo(exchange.ToRows(dq), buffers.dq);
  CopyTo(exchange.ToRows(dk), buffers.dk);
  CopyTo(exchange.ToRows(dv), buffers.dv);
}

#define CAPSTAN_DIVIDED(T)                                              \
  template void DividedAttentionForward<T>(                             \
      HeadExchange&, const AttentionShape&, int64_t, const PackedRows*, \
      const T*, const T*, const T*, T*, float*, DividedKept*);          \
  template void DividedAttentionBackward<T>(                            \
      HeadExchange&, const AttentionShape&, int64_t, const PackedRows*, \
      const AttentionBackwardBuffers<T>&, const DividedKept&);
CAPSTAN_DIVIDED(float)
CAPSTAN_DIVIDED(Bf16)
CAPSTAN_DIVIDED(Fp16)
#undef CAPSTAN_DIVIDED

}  // namespace capstan::kernels
