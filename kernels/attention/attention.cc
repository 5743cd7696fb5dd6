// SPDX-License-Identifier: Apache-2.0
//
// On the CPU in float32, scores are computed for a block of queries at a time
// against all visible keys, as matrix products directly on the layout of the
// projections, without transposes or copies of keys per group. Scores aren't
// kept: backward recomputes them from each row's log-sum-exp (Dao et al.,
// "FlashAttention", 2022, section 3.1). The documents of a packed sequence are
// processed one by one, so that masked scores cost nothing, and a document's
// bits don't depend on its neighbours.
#include "kernels/attention/attention.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/simd/simd.h"
#include "base/simd/tanh.h"
#include "kernels/attention/flash.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/keep.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kQueryBlock = 64;

// An independent part of a sequence: a document, or all. If causal, its queries
// are the last of its keys' positions.
struct Part {
  int64_t query = 0;  // the first
  int64_t key = 0;    // the first
  int64_t queries = 0;
  int64_t keys = 0;
};

template <typename Body>
void ForParts(const AttentionLayout& layout, int64_t b, const Body& body) {
  if (layout.first_keys != nullptr) {
    // Queries before the first key see nothing.
    const int64_t first = layout.first_keys[b];
    const int64_t skipped =
        std::max<int64_t>(0, first - (layout.keys - layout.queries));
    return body(
        Part{skipped, first, layout.queries - skipped, layout.keys - first});
  }
  if (layout.packing == nullptr) {
    return body(Part{0, 0, layout.queries, layout.keys});
  }
  for (const PackedRows::Document& document : layout.packing->row(b)) {
    body(
        Part{document.begin, document.begin, document.length, document.length});
  }
}

// Scores of `keys` keys, rounded up for base/simd.
int64_t ScoreStride(int64_t keys) { return (keys + 15) / 16 * 16; }

// A block of query rows of one head, and its rows of scores. Queries and keys
// are counted from the start of the part.
struct Block {
  Block(const AttentionShape& shape, const Part& part, int64_t query)
      : rows(std::min(kQueryBlock, part.queries - query)),
        last(shape.causal ? part.keys - part.queries + query : part.keys - 1),
        window(shape.window),
        begin(window > 0 ? std::max<int64_t>(0, last - window + 1) : 0),
        keys((shape.causal ? last + rows : part.keys) - begin),
        stride(ScoreStride(keys)) {}
  const int64_t rows;    // queries
  const int64_t last;    // the last key that the first query sees
  const int64_t window;  // 0: none
  const int64_t begin;   // the first key that the first query sees
  const int64_t keys;    // from there on, those visible to any query of it
  const int64_t stride;  // of its scores

  // The last column of scores that the first row sees.
  int64_t first() const { return last - begin; }

  // Overwrites the scores before each row's window.
  void FillBeforeWindows(float* scores, float value) const {
    if (window == 0) return;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t hidden = last + r - window + 1 - begin;
      if (hidden > 0) std::fill_n(scores + r * stride, hidden, value);
    }
  }
};

// Of one part of a row, for one thread.
std::vector<float> ScoreBuffer(const AttentionLayout& layout) {
  const PackedRows* packing = layout.packing;
  const int64_t window = layout.shape.window;
  const int64_t queries = packing ? packing->longest() : layout.queries;
  int64_t keys = packing ? packing->longest() : layout.keys;
  if (window > 0) keys = std::min(keys, window + kQueryBlock - 1);
  return std::vector<float>(std::min(kQueryBlock, queries) * ScoreStride(keys));
}

// The scores of a block: q k^T, scaled and capped. slope: the cap's derivative,
// laid out as the scores; may be null.
void Scores(const AttentionLayout& layout, const Block& block, ConstMatrix q,
            ConstMatrix k, float* scores, float* slope) {
  Gemm(Transpose::kRight, block.rows, block.keys, layout.shape.head_dim,
       layout.scale(), q, k, 0.0f, {scores, block.stride});
  if (layout.shape.softcap == 0.0) return;
  TanhLoops().softcap(scores, block.rows * block.stride,
                      static_cast<float>(layout.shape.softcap), slope);
}

// Buffers of one thread's backward, each of ScoreBuffer's size.
struct BackwardScores {
  explicit BackwardScores(const AttentionLayout& layout)
      : probs(ScoreBuffer(layout)), d_scores(ScoreBuffer(layout)) {
    if (layout.shape.softcap != 0.0) slope = ScoreBuffer(layout);
  }
  std::vector<float> probs, d_scores, slope;
};

// A part for one query head. Adds to dk and dv, except for the first head of a
// group.
void BackwardPart(const AttentionLayout& layout,
                  const AttentionBackwardBuffers& p, int64_t b, int64_t h,
                  const Part& part, BackwardScores* buffers) {
  const int64_t hd = layout.shape.head_dim, ld = layout.q_stride();
  const int64_t kld = layout.kv_stride;
  const int64_t qo = layout.q_offset(b, h) + part.query * ld;
  const int64_t part_keys = layout.kv_offset(b, h) + part.key * kld;
  const float* lse = p.log_sum_exp +
                     (b * layout.shape.heads + h) * layout.queries + part.query;
  float* const probs = buffers->probs.data();
  float* const d_scores = buffers->d_scores.data();
  float delta[kQueryBlock];
  // From the last block on: it sees all keys but those before its window, so
  // for the first head it overwrites dk and dv, and the others add.
  const int64_t last = (part.queries - 1) / kQueryBlock * kQueryBlock;
  for (int64_t i = last; i >= 0; i -= kQueryBlock) {
    const Block block(layout.shape, part, i);
    const bool overwrite = i == last && h % layout.group() == 0;
    const float beta = overwrite ? 0.0f : 1.0f;
    for (int64_t key = 0; overwrite && key < block.begin; ++key) {
      std::fill_n(p.dk + part_keys + key * kld, hd, 0.0f);
      std::fill_n(p.dv + part_keys + key * kld, hd, 0.0f);
    }
    const int64_t ko = part_keys + block.begin * kld;
    const ConstMatrix q{p.q + qo + i * ld, ld};
    const ConstMatrix d_out{p.d_out + qo + i * ld, ld};
    for (int64_t r = 0; r < block.rows; ++r) {
      delta[r] = Simd().dot(d_out.data + r * ld, p.out + qo + (i + r) * ld, hd);
    }
    Scores(layout, block, q, {p.k + ko, kld}, probs, buffers->slope.data());
    Simd().causal_softmax(probs, block.rows, block.keys, block.stride,
                          block.first(), lse + i);
    block.FillBeforeWindows(probs, 0.0f);
    Gemm(Transpose::kLeft, block.keys, hd, block.rows, 1.0f,
         {probs, block.stride}, d_out, beta, {p.dv + ko, kld});
    Gemm(Transpose::kRight, block.rows, block.keys, hd, 1.0f, d_out,
         {p.v + ko, kld}, 0.0f, {d_scores, block.stride});
    Simd().softmax_backward(probs, d_scores, block.rows, block.stride, delta,
                            layout.scale());
    if (layout.shape.softcap != 0.0) {
      TanhLoops().multiply(d_scores, buffers->slope.data(),
                           block.rows * block.stride);
    }
    Gemm(Transpose::kNone, block.rows, hd, block.keys, 1.0f,
         {d_scores, block.stride}, {p.k + ko, kld}, 0.0f,
         {p.dq + qo + i * ld, ld});
    Gemm(Transpose::kLeft, block.keys, hd, block.rows, 1.0f,
         {d_scores, block.stride}, q, beta, {p.dk + ko, kld});
  }
}

struct Call {
  AttentionShape shape;
  Packing packing;
};

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v,
                            const AttentionShape& shape,
                            const Packing& packing) {
    const AttentionLayout layout(shape, q.size(0), packing.get());
    at::Tensor out = at::empty(q.sizes(), q.options());
    at::Tensor log_sum_exp =
        at::empty({shape.batch, shape.heads, layout.queries}, q.options());
    AttentionForward(layout, ConstData(q), ConstData(k), ConstData(v),
                     Data(out), Data(log_sum_exp));
    ctx->save_for_backward({q, k, v, out, log_sum_exp});
    Keep(ctx, Call{shape, packing});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor &out = saved[3], &log_sum_exp = saved[4];
    const auto& [shape, packing] = KeptOf<Call>(ctx);
    const at::Tensor d_out = grads[0].contiguous();
    at::Tensor dq = at::empty(q.sizes(), q.options());
    at::Tensor dk = at::empty(k.sizes(), k.options());
    at::Tensor dv = at::empty(v.sizes(), v.options());
    AttentionBackward(AttentionLayout(shape, q.size(0), packing.get()),
                      {ConstData(q), ConstData(k), ConstData(v), ConstData(out),
                       ConstData(d_out), ConstData(log_sum_exp), Data(dq),
                       Data(dk), Data(dv)});
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

double ScoreScale(const AttentionShape& shape) {
  return shape.scale != 0.0 ? shape.scale
                            : 1.0 / std::sqrt(double(shape.head_dim));
}

// [batch, heads, T, head_dim] of [.., heads * head_dim].
at::Tensor PerHead(const at::Tensor& x, const AttentionShape& shape) {
  return x
      .reshape({shape.batch, -1, x.size(-1) / shape.head_dim, shape.head_dim})
      .transpose(1, 2);
}

// Whether queries that are the last of `keys` positions see each key: [1, 1,
// queries, keys] bool, or, with `first` (see CachedAttention), [batch, ..].
// Queries before the first key see themselves, as a softmax over nothing isn't
// a number.
at::Tensor Band(const AttentionShape& shape, int64_t queries, int64_t keys,
                const at::Device& device, const at::Tensor& first) {
  const at::AutoGradMode no_gradients(false);
  const at::Tensor key = at::arange(keys, at::dtype(at::kLong).device(device));
  const at::Tensor query = key.narrow(0, keys - queries, queries).unsqueeze(1);
  at::Tensor seen = key <= query;
  if (shape.window > 0) seen &= key > query - shape.window;
  if (!first.defined()) return seen.view({1, 1, queries, keys});
  const at::Tensor begin = first.to(device).view({-1, 1, 1, 1});
  return (seen & (key >= begin)) | (key == query);
}

// [.., L, head_dim] of a group's heads, for each of them.
at::Tensor ForGroup(const at::Tensor& x, const AttentionShape& shape) {
  return shape.heads == shape.kv_heads
             ? x
             : x.repeat_interleave(shape.heads / shape.kv_heads, 1);
}

// 0 where `seen`, else -infinity, to add to scores.
at::Tensor Additive(const at::Tensor& seen, c10::ScalarType dtype) {
  const at::AutoGradMode no_gradients(false);
  return at::zeros(seen.sizes(), seen.options().dtype(dtype))
      .masked_fill_(seen.logical_not(),
                    -std::numeric_limits<double>::infinity());
}

// With capped scores, which ATen's fused attention doesn't know. As in
// transformers, the softmax is float32 and rounded. Autograd keeps the tanh and
// the probabilities, in both types; what it doesn't keep is overwritten.
at::Tensor CappedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape,
                           const std::optional<at::Tensor>& mask) {
  at::Tensor scores = at::matmul(q, k.transpose(2, 3))
                          .mul_(ScoreScale(shape))
                          .div_(shape.softcap)
                          .tanh_();
  scores = scores * shape.softcap;
  if (mask.has_value()) scores.add_(*mask);
  const at::Tensor probs = at::softmax(scores, -1, at::kFloat);
  scores.reset();
  return at::matmul(probs.to(q.scalar_type()), v);
}

// What limits attention besides AttentionShape.
struct Limits {
  const PackedRows* packing = nullptr;  // as a mask
  AttentionMasks* masks = nullptr;
  at::Tensor first = {};  // see CachedAttention
};

// What is added to scores, or a bool mask; none: by shape.causal.
std::optional<at::Tensor> MaskOf(const AttentionShape& shape,
                                 const at::Tensor& q, int64_t queries,
                                 int64_t keys, const Limits& limits) {
  const bool windowed = shape.window > 0 && keys > shape.window;
  const bool packed = limits.packing != nullptr;
  const bool capped = shape.softcap != 0.0 && (shape.causal || packed);
  if (limits.first.defined() || ((windowed || capped) && queries != keys)) {
    return Additive(Band(shape, queries, keys, q.device(), limits.first),
                    q.scalar_type());
  }
  if (windowed || capped) {
    return limits.masks->Get(shape, keys, q.options(), limits.packing);
  }
  if (packed) return limits.packing->mask(shape.causal);
  return std::nullopt;
}

at::Tensor ComposedAttention(const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionShape& shape,
                             const Limits& limits) {
  const at::Tensor qh = PerHead(q, shape);
  at::Tensor kh = PerHead(k, shape), vh = PerHead(v, shape);
  const int64_t queries = qh.size(2), keys = kh.size(2);
  const bool capped = shape.softcap != 0.0;
  std::optional<at::Tensor> mask = MaskOf(shape, q, queries, keys, limits);
  bool grouped = shape.heads != shape.kv_heads;
  if (grouped && (q.device().is_cpu() || mask.has_value() || capped)) {
    // ATen's fused attention doesn't support groups on CPUs, nor with a mask.
    kh = ForGroup(kh, shape);
    vh = ForGroup(vh, shape);
    grouped = false;
  }
  const bool causal = shape.causal && !mask.has_value();
  if (causal && queries != keys && queries > 1) {
    mask = at::ones({queries, keys}, q.options().dtype(at::kBool))
               .tril(keys - queries);
  }
  std::optional<double> scale;
  if (shape.scale != 0.0) scale = shape.scale;
  const at::Tensor out =
      capped ? CappedAttention(qh, kh, vh, shape, mask)
             : at::scaled_dot_product_attention(
                   qh, kh, vh, mask, /*dropout_p=*/0.0,
                   /*is_causal=*/causal && queries == keys, scale, grouped);
  return out.transpose(1, 2).reshape({q.size(0), q.size(1)});
}

// What a GPU computes by the flash kernels: all that LibTorch would need a mask
// for, and, so that the choice of kernels doesn't depend on its heuristics, all
// if results are to be the same in each run.
bool UseFlash(const at::Tensor& q, const AttentionShape& shape,
              const PackedRows* packing) {
  const int64_t length = q.size(0) / shape.batch;
  const bool masked =
      packing != nullptr || (shape.window > 0 && length > shape.window);
  return (masked || at::globalContext().deterministicAlgorithms()) &&
         CanUseFlash(q, shape, packing);
}

// On CPUs document by document; on GPUs, which would have to launch kernels for
// each, with a mask.
at::Tensor ComposedPackedAttention(const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v,
                                   const AttentionShape& shape,
                                   const PackedRows& packing,
                                   AttentionMasks* masks) {
  if (!q.is_cpu()) {
    return ComposedAttention(q, k, v, shape, {&packing, masks});
  }
  std::vector<int64_t> lengths;
  for (const PackedRows::Document& document : packing.documents()) {
    lengths.push_back(document.length);
  }
  const std::vector<at::Tensor> qs = q.split_with_sizes(lengths);
  const std::vector<at::Tensor> ks = k.split_with_sizes(lengths);
  const std::vector<at::Tensor> vs = v.split_with_sizes(lengths);
  AttentionShape alone = shape;
  alone.batch = 1;
  // First the longest document's mask, which serves all.
  MaskOf(alone, q, packing.longest(), packing.longest(), {nullptr, masks});
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    outs.push_back(
        ComposedAttention(qs[i], ks[i], vs[i], alone, {nullptr, masks}));
  }
  return at::cat(outs);
}

// For plans: bytes of tensors, and of the blocks of scores in ATen's fused
// attention (FlashAttentionKernel.cpp), float32 and rounded, for one thread: on
// CPUs ranks have few.
struct AttentionBytes {
  AttentionBytes(const AttentionShape& shape, int64_t rows,
                 c10::ScalarType dtype)
      : own(dtype == c10::ScalarType::Float),
        grouped(shape.heads != shape.kv_heads),
        q(rows * shape.heads * shape.head_dim * ElementBytes(dtype)),
        kv(rows * shape.kv_heads * shape.head_dim * ElementBytes(dtype)),
        log_sum_exp(rows * shape.heads * kFloatBytes),
        capped(shape.softcap != 0.0),
        copied(shape.batch > 1) {
    const int64_t length = rows / shape.batch;
    scores = rows * shape.heads * length;
    rounded = scores * ElementBytes(dtype);
    const int64_t queries = std::min<int64_t>(
        length >= 768 ? 256 : (length >= 192 ? 64 : 32), length);
    block = queries * std::min<int64_t>(512, length) *
            (kFloatBytes + ElementBytes(dtype));
  }
  // Of float32, which the flash kernels don't have; those that have it don't
  // have groups.
  bool ComposedOnGpu() const { return own && grouped; }
  bool own;  // AttentionFunction rather than ATen's
  bool grouped;
  int64_t q, kv, log_sum_exp, block;
  // CappedAttention's: scores of all heads, if rows are one document each, and
  // their bytes in q's type. The products copy q, and ungrouped k and v, unless
  // there is but one sequence.
  bool capped, copied;
  int64_t scores, rounded;
};

// As PlanAttentionBackward, of ATen's kernels on a GPU. The flash kernel adds
// up the gradient of q in float32 and, in groups, makes those of k and v for
// each head (mha_bwd in aten/src/ATen/native/transformers/cuda/flash_attn).
void PlanGpuBackward(const AttentionBytes& b, MemoryLedger* ledger) {
  if (b.ComposedOnGpu()) {
    const int64_t scores = b.scores * kFloatBytes;
    ledger->Pass(2 * scores);  // gradients of probabilities and scores
    ledger->Take(3 * b.q);
    ledger->Free(3 * b.q + scores);  // what was kept
    ledger->Free(2 * (b.q - b.kv));  // summed over each group
    ledger->Free(2 * b.q);           // the output and its gradient
    return;
  }
  ledger->Take(b.q + 2 * b.kv);
  const int64_t floats = b.own ? b.q : 2 * b.q;
  ledger->Pass(floats + b.log_sum_exp + (b.grouped ? 2 * b.q : 0));
  // q, k, v, the output and its gradient.
  ledger->Free(3 * b.q + 2 * b.kv + b.log_sum_exp);
}

// As PlanAttention, of CappedAttention.
void PlanCapped(const AttentionBytes& b, MemoryLedger* ledger) {
  const int64_t floats = b.scores * kFloatBytes;
  if (b.grouped) ledger->Take(2 * b.q);
  if (b.copied) ledger->Take(b.q);
  if (b.copied && !b.grouped) ledger->Take(b.kv);
  ledger->Take(2 * b.rounded);  // the tanh and the scores
  ledger->Pass(2 * floats);     // scores and probabilities
  ledger->Take(floats);
  ledger->Free(b.rounded);
  ledger->Take(b.rounded);  // the probabilities, rounded
  if (b.copied && !b.grouped) ledger->Take(b.kv);
  ledger->Take(b.q);
  ledger->Pass(b.q);  // per head, then in rows' order
}

void PlanCappedBackward(const AttentionBytes& b, bool packed,
                        MemoryLedger* ledger) {
  const int64_t floats = b.scores * kFloatBytes;
  ledger->Take(b.q);              // the output's gradient, per head
  ledger->Take(b.rounded + b.q);  // of the probabilities and of v
  ledger->Free(b.rounded);        // the probabilities, rounded
  ledger->Free(b.q);              // the gradient per head
  const int64_t kv = b.grouped ? b.q : b.kv;
  const bool copied = b.grouped || b.copied;
  if (copied) ledger->Free(kv);  // of v
  ledger->Take(floats);
  ledger->Free(b.rounded);
  ledger->Pass(floats);  // of the scores
  ledger->Free(floats);  // the probabilities
  ledger->Take(b.rounded);
  ledger->Free(floats);
  ledger->Pass(2 * b.rounded);  // through the cap
  ledger->Free(b.rounded);      // the tanh
  ledger->Take(2 * b.q);        // of q and k
  ledger->Free(b.rounded);
  ledger->Free(2 * b.q);  // the output and its gradient
  if (packed) ledger->Free(b.q);
  ledger->Free(b.q + (copied ? kv : 2 * kv));
  if (b.grouped) ledger->Free(2 * (b.q - b.kv));  // summed over each group
}

}  // namespace

float AttentionLayout::scale() const {
  return shape.scale != 0.0
             ? static_cast<float>(shape.scale)
             : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

void AttentionForward(const AttentionLayout& layout, const float* q,
                      const float* k, const float* v, float* out,
                      float* log_sum_exp) {
  const int64_t heads = layout.shape.heads, hd = layout.shape.head_dim;
  const int64_t ld = layout.q_stride();
  const int64_t kld = layout.kv_stride;
  const auto head = [&](int64_t b, int64_t h, const Part& part, float* scores) {
    const float* qh = q + layout.q_offset(b, h) + part.query * ld;
    const float* kh = k + layout.kv_offset(b, h) + part.key * kld;
    const float* vh = v + layout.kv_offset(b, h) + part.key * kld;
    float* oh = out + layout.q_offset(b, h) + part.query * ld;
    float* lse = log_sum_exp + (b * heads + h) * layout.queries + part.query;
    float inverse_sum[kQueryBlock];
    for (int64_t i = 0; i < part.queries; i += kQueryBlock) {
      const Block block(layout.shape, part, i);
      Scores(layout, block, {qh + i * ld, ld}, {kh + block.begin * kld, kld},
             scores, /*slope=*/nullptr);
      block.FillBeforeWindows(scores, -std::numeric_limits<float>::infinity());
      Simd().causal_exp(scores, block.rows, block.keys, block.stride,
                        block.first(), inverse_sum, lse + i);
      block.FillBeforeWindows(scores, 0.0f);  // not quite 0
      Gemm(Transpose::kNone, block.rows, hd, block.keys, 1.0f,
           {scores, block.stride}, {vh + block.begin * kld, kld}, 0.0f,
           {oh + i * ld, ld});
      for (int64_t r = 0; r < block.rows; ++r) {
        Simd().scale(oh + (i + r) * ld, hd, inverse_sum[r]);
      }
    }
  };
  at::parallel_for(0, layout.shape.batch * heads, 1,
                   [&](int64_t begin, int64_t end) {
                     std::vector<float> scores = ScoreBuffer(layout);
                     for (int64_t i = begin; i < end; ++i) {
                       ForParts(layout, i / heads, [&](const Part& part) {
                         head(i / heads, i % heads, part, scores.data());
                       });
                     }
                   });
}

void AttentionBackward(const AttentionLayout& layout,
                       const AttentionBackwardBuffers& buffers) {
  const int64_t kv_heads = layout.shape.kv_heads;
  at::parallel_for(
      0, layout.shape.batch * kv_heads, 1, [&](int64_t begin, int64_t end) {
        BackwardScores scores(layout);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i % kv_heads * layout.group();
          for (int64_t h = first; h < first + layout.group(); ++h) {
            ForParts(layout, i / kv_heads, [&](const Part& part) {
              BackwardPart(layout, buffers, i / kv_heads, h, part, &scores);
            });
          }
        }
      });
}

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionShape& shape,
                     const Packing& packing, const SharedMasks& masks) {
  TORCH_CHECK(shape.causal || shape.window == 0,
              "a window is for causal attention");
  if (FastPath(q)) {
    // Theirs may be rows of wider ones (QueryKeyValue).
    return AttentionFunction::apply(q.contiguous(), k.contiguous(),
                                    v.contiguous(), shape, packing);
  }
  if (UseFlash(q, shape, packing.get())) {
    return FlashAttention(q, k, v, shape, packing.get());
  }
  AttentionMasks unshared;
  AttentionMasks* const made = masks ? masks.get() : &unshared;
  return packing ? ComposedPackedAttention(q, k, v, shape, *packing, made)
                 : ComposedAttention(q, k, v, shape, {nullptr, made});
}

void PlanAttention(const AttentionShape& shape, int64_t rows,
                   c10::ScalarType dtype, bool packed, MemoryLedger* ledger,
                   bool gpu) {
  const AttentionBytes b(shape, rows, dtype);
  if (gpu && !b.capped) {
    if (!b.ComposedOnGpu()) return ledger->Take(b.q + b.log_sum_exp);
    // Scaled, and repeated for each head of a group; probabilities.
    ledger->Take(3 * b.q + b.scores * kFloatBytes);
    ledger->Pass(b.scores * kFloatBytes);  // scores
    ledger->Take(b.q);
    return ledger->Pass(b.q);  // per head, then in rows' order
  }
  if (b.own) return ledger->Take(b.q + b.log_sum_exp);
  if (b.capped) {
    PlanCapped(b, ledger);
    if (packed) ledger->Take(b.q);
    return;
  }
  // Keys and values, repeated for each head of their group.
  if (b.grouped) ledger->Take(2 * b.q);
  ledger->Pass(b.q + b.log_sum_exp + b.block);
  ledger->Take(b.q + b.log_sum_exp);
  // The documents' outputs, from which the next operator makes one tensor.
  if (packed) ledger->Take(b.q);
}

int64_t AttentionMaskBytes(const AttentionShape& shape, int64_t length,
                           c10::ScalarType dtype) {
  const bool needed = (shape.window > 0 && length > shape.window) ||
                      (shape.causal && shape.softcap != 0.0);
  if (dtype == c10::ScalarType::Float || !needed) return 0;
  return length * length * ElementBytes(dtype);
}

void PlanAttentionBackward(const AttentionShape& shape, int64_t rows,
                           c10::ScalarType dtype, bool packed,
                           MemoryLedger* ledger, bool gpu) {
  const AttentionBytes b(shape, rows, dtype);
  if (gpu && !b.capped) return PlanGpuBackward(b, ledger);
  if (b.own) {
    ledger->Take(b.q + 2 * b.kv);
    ledger->Free(3 * b.q + 2 * b.kv + b.log_sum_exp);
    return;
  }
  if (b.capped) return PlanCappedBackward(b, packed, ledger);
  ledger->Pass(3 * b.q + 2 * b.block);
  ledger->Take(3 * b.q);
  if (packed) {
    ledger->Pass(b.q);  // the documents' gradients, concatenated
    ledger->Free(b.q);
  }
  ledger->Free(b.q + 2 * (b.grouped ? b.q : b.kv));
  ledger->Free(2 * b.q + b.log_sum_exp);  // the output and its gradient
  if (!b.grouped) return;
  // Summed over each group, then put in row order.
  for (int i = 0; i < 2; ++i) {
    ledger->Take(b.kv);
    ledger->Free(b.q);
    ledger->Pass(b.kv);
  }
}

at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape,
                           const at::Tensor& first) {
  TORCH_CHECK(shape.causal, "a cache of keys is for causal attention");
  if (!FastPath(q)) {
    // Not LibTorch's choice: cuDNN would plan anew for each length.
    if (!first.defined() && CanUseFlash(q, shape, nullptr)) {
      return FlashAttention(q, k, v, shape, nullptr);
    }
    AttentionMasks unshared;
    return ComposedAttention(q, k, v, shape, {nullptr, &unshared, first});
  }
  AttentionLayout layout;
  layout.shape = shape;
  layout.queries = q.size(0) / shape.batch;
  layout.keys = k.size(1);
  layout.kv_batch_stride = k.stride(0);
  layout.kv_stride = k.stride(1);
  if (first.defined()) layout.first_keys = first.const_data_ptr<int64_t>();
  // Queries before the first key stay 0.
  at::Tensor out = first.defined() ? at::zeros(q.sizes(), q.options())
                                   : at::empty(q.sizes(), q.options());
  std::vector<float> log_sum_exp(shape.batch * shape.heads * layout.queries);
  AttentionForward(layout, ConstData(q), ConstData(k), ConstData(v), Data(out),
                   log_sum_exp.data());
  return out;
}

at::Tensor AttentionMasks::Get(const AttentionShape& shape, int64_t length,
                               const at::TensorOptions& options,
                               const PackedRows* packing) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  for (const Made& made : made_) {
    if (made.window == shape.window && made.causal == shape.causal &&
        made.mask.scalar_type() == dtype && made.mask.size(2) >= length) {
      return made.mask.narrow(2, 0, length).narrow(3, 0, length);
    }
  }
  const at::AutoGradMode no_gradients(false);
  at::Tensor seen;
  if (shape.causal) seen = Band(shape, length, length, options.device(), {});
  if (packing != nullptr) {
    const at::Tensor& of_rows = packing->mask(shape.causal);
    seen = seen.defined() ? of_rows & seen : of_rows;
  }
  made_.push_back({shape.window, shape.causal, Additive(seen, dtype)});
  return made_.back().mask;
}

}  // namespace capstan::kernels
