// SPDX-License-Identifier: Apache-2.0
//
// Attention of chunks of a sequence's queries, as ranks that divide rows
// compute it, compared with that of whole sequences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/plain_attention_for_test.h"
#include "kernels/fast_path.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kLength = 140;  // 64 is a block's

struct Result {
  at::Tensor out, dq, dk, dv;
};

// Of x [batch * kLength, width], the chunks' rows, sequence by sequence.
at::Tensor RowsOf(const at::Tensor& x, int64_t batch,
                  const std::vector<RowChunk>& chunks) {
  std::vector<at::Tensor> parts;
  const at::Tensor whole = x.view({batch, kLength, -1});
  for (const RowChunk& chunk : chunks) {
    parts.push_back(whole.narrow(1, chunk.begin, chunk.length));
  }
  return at::cat(parts, 1).reshape({-1, x.size(1)});
}

template <typename T>
Result Run(const AttentionLayout& layout, const at::Tensor& q,
           const at::Tensor& k, const at::Tensor& v, const at::Tensor& d_out) {
  Result r = {at::empty_like(q), at::empty_like(q), at::empty_like(k),
              at::empty_like(v)};
  const at::Tensor sums =
      at::empty({q.size(0) * layout.shape.heads}, at::kFloat);
  AttentionForward<T>(layout, ReadAs<T>(q), ReadAs<T>(k), ReadAs<T>(v),
                      WriteAs<T>(r.out), sums.mutable_data_ptr<float>());
  AttentionBackward<T>(
      layout, {ReadAs<T>(q), ReadAs<T>(k), ReadAs<T>(v), ReadAs<T>(r.out),
               ReadAs<T>(d_out), sums.const_data_ptr<float>(), WriteAs<T>(r.dq),
               WriteAs<T>(r.dk), WriteAs<T>(r.dv)});
  return r;
}

// Ranks with those chunks each have the whole's results for their queries, and
// their gradients of keys and values add up to the whole's.
template <typename T>
void ExpectParts(const AttentionShape& shape, const PackedRows* packing,
                 const std::vector<std::vector<RowChunk>>& ranks,
                 double bound) {
  const int64_t rows = shape.batch * kLength;
  const auto wave = [rows](int64_t heads, int64_t width, double size) {
    return Wave({rows, heads * width}, size).to(StorageType<T>());
  };
  const at::Tensor q = wave(shape.heads, shape.head_dim, 2.0);
  const at::Tensor k = wave(shape.kv_heads, shape.head_dim, 2.0);
  const at::Tensor v = wave(shape.kv_heads, shape.head_dim, 1.0);
  const at::Tensor d = wave(shape.heads, shape.head_dim, 1.5);
  const Result whole = Run<T>({shape, rows, packing}, q, k, v, d);
  at::Tensor dk = at::zeros(k.sizes(), at::kFloat), dv = at::zeros_like(dk);
  for (const std::vector<RowChunk>& chunks : ranks) {
    const auto own = [&](const at::Tensor& x) {
      return RowsOf(x, shape.batch, chunks);
    };
    const at::Tensor part = own(q);
    AttentionLayout layout(shape, part.size(0), packing);
    layout.keys = kLength;
    layout.kv_batch_stride = kLength * layout.kv_stride;
    layout.chunks = chunks;
    const Result r = Run<T>(layout, part, k, v, own(d));
    EXPECT_LT(Difference(r.out, own(whole.out)), bound);
    EXPECT_LT(Difference(r.dq, own(whole.dq)), bound);
    dk += r.dk;
    dv += r.dv;
  }
  EXPECT_LT(Difference(dk, whole.dk), bound);
  EXPECT_LT(Difference(dv, whole.dv), bound);
}

TEST(ChunksTest, RanksHaveTheirPartsOfTheWhole) {
  const PackedRows packing(Positions({{30, 1, 5, 104}, {kLength}, {70, 70}}));
  const std::vector<std::vector<std::vector<RowChunk>>> divisions = {
      {{{0, 35}, {105, 35}}, {{35, 35}, {70, 35}}},
      {{{0, 140}}},
      {{{0, 1}, {1, 1}}, {{2, 68}, {70, 70}}},
      {{{0, 100}}, {{100, 40}}}};
  for (const auto& ranks : divisions) {
    for (const PackedRows* packed :
         {static_cast<const PackedRows*>(nullptr), &packing}) {
      for (const bool causal : {true, false}) {
        for (const int64_t window : {0, 9, 80}) {
          if (window > 0 && !causal) continue;
          AttentionShape shape = {3, 6, 2, 8, causal};
          shape.window = window;
          SCOPED_TRACE(testing::Message()
                       << ranks.size() << " ranks, packed " << !!packed
                       << ", causal " << causal << ", window " << window);
          ExpectParts<float>(shape, packed, ranks, 2e-6);
          ExpectParts<Bf16>(shape, packed, ranks, 2e-2);
          ExpectParts<Fp16>(shape, packed, ranks, 4e-3);
          shape.softcap = 3.0;
          ExpectParts<float>(shape, packed, ranks, 2e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace capstan::kernels
