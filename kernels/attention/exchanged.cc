// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/exchanged.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

// Keys and values of all ranks, or their gradients, as one matrix: each row has
// a key's heads, then a value's.
template <typename T>
class AllKeys {
 public:
  AllKeys(KeyExchange& keys, const AttentionShape& shape, int64_t rows,
          const PackedRows* packing)
      : keys_(keys),
        rows_(rows),
        width_(shape.kv_heads * shape.head_dim),
        layout_(shape, rows, packing) {
    layout_.chunks = keys.chunks();
    layout_.kv_stride = 2 * width_;
  }

  // Also completes the layout.
  at::Tensor Gather(const T* k, const T* v) {
    const at::Tensor own =
        at::cat({ViewOf(k, rows_, width_), ViewOf(v, rows_, width_)}, 1);
    at::Tensor all = keys_.Gather(own);
    layout_.keys = all.size(0) / layout_.shape.batch;
    layout_.kv_batch_stride = layout_.keys * layout_.kv_stride;
    return all;
  }
  void SumOwn(const at::Tensor& dkv, T* dk, T* dv) {
    const at::Tensor own = keys_.SumOwn(dkv);
    CopyTo(own.narrow(1, 0, width_), dk);
    CopyTo(own.narrow(1, width_, width_), dv);
  }

  const AttentionLayout& layout() const { return layout_; }
  const T* Values(const at::Tensor& all) const {
    return ReadAs<T>(all) + width_;
  }
  T* MutableValues(const at::Tensor& all) const {
    return WriteAs<T>(all) + width_;
  }

 private:
  KeyExchange& keys_;
  const int64_t rows_, width_;
  AttentionLayout layout_;
};

}  // namespace

KeyExchange::~KeyExchange() = default;
AttentionExchange::~AttentionExchange() = default;

AttentionShape AttentionExchange::PartOf(AttentionShape shape) const {
  shape.heads /= ranks();
  shape.kv_heads /= ranks();
  return shape;
}

template <typename T>
void ExchangedAttentionForward(AttentionExchange& exchange,
                               const AttentionShape& shape, int64_t rows,
                               const PackedRows* packing, const T* q,
                               const T* k, const T* v, T* out,
                               float* log_sum_exp, ExchangedKept* kept) {
  if (KeyExchange* const keys = exchange.keys()) {
    AllKeys<T> all(*keys, shape, rows, packing);
    const at::Tensor kv = all.Gather(k, v);
    return AttentionForward<T>(all.layout(), q, ReadAs<T>(kv), all.Values(kv),
                               out, log_sum_exp);
  }
  const int64_t width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  const at::Tensor part_q = exchange.ToAttention(ViewOf(q, rows, width));
  const at::Tensor part_k = exchange.ToAttention(ViewOf(k, rows, kv_width));
  const at::Tensor part_v = exchange.ToAttention(ViewOf(v, rows, kv_width));
  const at::Tensor part_out = at::empty(part_q.sizes(), part_q.options());
  const AttentionShape part = exchange.PartOf(shape);
  const at::Tensor part_sums =
      at::empty({part_q.size(0) * part.heads}, at::kFloat);
  AttentionForward<T>({part, part_q.size(0), packing}, ReadAs<T>(part_q),
                      ReadAs<T>(part_k), ReadAs<T>(part_v),
                      WriteAs<T>(part_out),
                      part_sums.mutable_data_ptr<float>());
  CopyTo(exchange.FromAttention(part_out), out);
  *kept = {part_q, part_k, part_v, part_out, part_sums};
}

template <typename T>
void ExchangedAttentionBackward(AttentionExchange& exchange,
                                const AttentionShape& shape, int64_t rows,
                                const PackedRows* packing,
                                const AttentionBackwardBuffers<T>& buffers,
                                const ExchangedKept& kept) {
  if (KeyExchange* const keys = exchange.keys()) {
    AllKeys<T> all(*keys, shape, rows, packing);
    const at::Tensor kv = all.Gather(buffers.k, buffers.v);
    const at::Tensor dkv = at::empty_like(kv);
    AttentionBackwardBuffers<T> with = buffers;
    with.k = ReadAs<T>(kv);
    with.v = all.Values(kv);
    with.dk = WriteAs<T>(dkv);
    with.dv = all.MutableValues(dkv);
    AttentionBackward<T>(all.layout(), with);
    return all.SumOwn(dkv, buffers.dk, buffers.dv);
  }
  const auto& [q, k, v, out, log_sum_exp] = kept;
  const at::Tensor d_out = exchange.FromAttentionBackward(
      ViewOf(buffers.d_out, rows, shape.heads * shape.head_dim));
  const at::Tensor dq = at::empty(q.sizes(), q.options());
  const at::Tensor dk = at::empty(k.sizes(), k.options());
  const at::Tensor dv = at::empty(v.sizes(), v.options());
  AttentionBackward<T>(
      {exchange.PartOf(shape), q.size(0), packing},
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
      const T*, const T*, const T*, T*, float*, ExchangedKept*);             \
  template void ExchangedAttentionBackward<T>(                               \
      AttentionExchange&, const AttentionShape&, int64_t, const PackedRows*, \
      const AttentionBackwardBuffers<T>&, const ExchangedKept&);
CAPSTAN_EXCHANGED(float)
CAPSTAN_EXCHANGED(Bf16)
CAPSTAN_EXCHANGED(Fp16)
#undef CAPSTAN_EXCHANGED

}  // namespace capstan::kernels
