// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/layer_cache.h"
#include "kernels/decode/few_rows.h"
#include "kernels/fast_path.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fused_rows.h"
#include "kernels/layers/mixed_linear.h"
#include "kernels/layers/stored_linear.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/memory.h"

namespace capstan::kernels {
namespace {

// The fewest keys times channels of attention worth waking a thread.
constexpr int64_t kAttentionGrain = int64_t{1} << 16;

// y = a + b; y may be either.
void Add(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

// Whether a layer is no more than a product with a matrix as it is stored, plus
// a bias.
bool IsProduct(const LinearPart& part) {
  return !part.weight.packed() && !part.adapter.defined();
}

// Whether each token gets the bits that it would get in training.
bool AsInTraining() { return !TakesFewRows(1); }

// One of several layers of the same rows.
struct Output {
  const LinearPart* part = nullptr;
  float* y = nullptr;  // dense rows
  bool add = false;
};

// y (+)= the layers of x [rows, width].
void Project(const float* x, int64_t rows, int64_t width,
             std::initializer_list<Output> outputs) {
  FewRowsProduct products[3];
  int count = 0;
  for (const Output& out : outputs) {
    const LinearPart& part = *out.part;
    const int64_t n = part.rows();
    if (!IsProduct(part) || AsInTraining()) {
      ForwardInto(part, ViewOf(x, rows, width), ViewOf(out.y, rows, n),
                  out.add ? 1.0 : 0.0);
      continue;
    }
    FewRowsProduct product;
    product.w = StoredOf(part.weight);
    product.y = out.y;
    product.y_stride = n;
    product.add = out.add;
    if (part.bias.defined()) {
      const float* const bias = ConstData(part.bias);
      for (int64_t r = 0; r < rows; ++r) {
        float* const y = out.y + r * n;
        if (out.add) {
          Add(y, bias, n, y);
        } else {
          std::memcpy(y, bias, n * sizeof(float));
        }
      }
      product.add = true;
    }
    if (TakesFewRows(rows)) {
      products[count++] = product;
    } else {
      StoredLinearInto(x, width, rows, product);
    }
  }
  const ProfileScope profile("matrix products");
  if (count > 0) FewRows(x, width, rows, products, count);
}

// Rotates x [rows, heads * head_dim].
void Rotate(const TransformerBlockOptions& options, int64_t rows, int64_t heads,
            float* x) {
  const at::Tensor& table = options.rope_table;
  if (!table.defined()) return;
  const int64_t head_dim = options.shape.head_dim, width = heads * head_dim;
  if (table.size(1) != head_dim || rows > RowGrain(width)) {
    at::Tensor view = ViewOf(x, rows, width);
    return ApplyRope(table, RopeDirection::kForward, head_dim, view);
  }
  const float* const angles = ConstData(table);
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = angles + r % table.size(0) * head_dim;
    Simd().fp32.rotate(row, row + head_dim / 2, 1.0f, heads, head_dim / 2,
                       x + r * width);
  }
}

// One query a sequence, against all keys that it sees. A head's group shares
// its keys and values, which are read once.
class OneQuery {
 public:
  OneQuery(const AttentionShape& shape, const CachedKeyValue& all,
           const at::Tensor& first)
      : shape_(shape),
        all_(all),
        first_(first.defined() ? first.const_data_ptr<int64_t>() : nullptr),
        group_(shape.heads / shape.kv_heads),
        scale_(shape.scale != 0.0
                   ? static_cast<float>(shape.scale)
                   : 1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {}

  // q, out: [batch, heads * head_dim].
  void Run(const float* q, float* out) const {
    const ProfileScope profile("attention");
    const int64_t units = shape_.batch * shape_.kv_heads;
    const int64_t cost = all_.k.size(1) * shape_.head_dim * (group_ + 1);
    const int64_t grain = std::max<int64_t>(1, kAttentionGrain / cost);
    const auto run = [&](int64_t begin, int64_t end) {
      const int64_t keys = (all_.k.size(1) + 15) / 16 * 16;
      std::vector<float> space(group_ * (keys + shape_.head_dim + 2));
      for (int64_t i = begin; i < end; ++i) Unit(i, q, keys, space.data(), out);
    };
    if (units <= grain) return run(0, units);
    at::parallel_for(0, units, grain, run);
  }

 private:
  void Unit(int64_t unit, const float* q, int64_t stride, float* space,
            float* out) const {
    const int64_t hd = shape_.head_dim, length = all_.k.size(1);
    const int64_t b = unit / shape_.kv_heads, h = unit % shape_.kv_heads;
    int64_t begin = first_ == nullptr ? 0 : first_[b];
    if (shape_.window > 0) begin = std::max(begin, length - shape_.window);
    const int64_t count = length - begin;
    const int64_t at = (b * shape_.kv_heads + h) * group_ * hd;
    if (count <= 0) {
      std::fill(out + at, out + at + group_ * hd, 0.0f);
      return;
    }
    float* const scores = space;
    float* const scaled = scores + group_ * stride;
    float* const inverse_sum = scaled + group_ * hd;
    for (int64_t i = 0; i < group_ * hd; ++i) scaled[i] = q[at + i] * scale_;
    const auto rows = [&](const at::Tensor& x) {
      return ConstData(x) + b * x.stride(0) + begin * x.stride(1) + h * hd;
    };
    const FewRowsKernels& loops = kFewRowsLoops.best();
    loops.fp32(rows(all_.k), nullptr, count, hd, all_.k.stride(1), scaled, hd,
               group_, /*add=*/false, scores, stride);
    Simd().causal_exp(scores, group_, count, stride, /*first=*/count,
                      inverse_sum, inverse_sum + group_);
    loops.weighted_sums(scores, stride, group_, count, rows(all_.v),
                        all_.v.stride(1), hd, inverse_sum, out + at, hd);
  }

  const AttentionShape& shape_;
  const CachedKeyValue& all_;
  const int64_t* const first_;
  const int64_t group_;
  const float scale_;
};

class Decode {
 public:
  Decode(const at::Tensor& x, const TransformerBlockWeights& weights,
         const TransformerBlockOptions& options)
      : x_(ConstData(x)),
        weights_(weights),
        options_(options),
        shape_(options.shape),
        rows_(x.size(0)),
        hidden_(x.size(1)),
        linears_(weights, options),
        out_(at::empty({rows_, hidden_}, x.options())) {
    memory_ = at::empty({Layout(nullptr)}, x.options());
    Layout(Data(memory_));
  }

  at::Tensor Run() {
    Attention();
    if (mlp()) Mlp();
    return out_;
  }

 private:
  bool mlp() const { return weights_.mlp.down.defined(); }

  // Places what is made on the way; returns the floats it takes.
  int64_t Layout(float* base) {
    MemoryParts parts(base);
    const int64_t q = shape_.heads * shape_.head_dim;
    normed_ = parts.Take(rows_ * hidden_);
    rstd_ = parts.Take(rows_ * (shape_.heads + shape_.kv_heads));
    q_ = parts.Take(rows_ * q);
    mixed_ = parts.Take(rows_ * q);
    const int64_t inner = mlp() ? rows_ * linears_[kGateMatrix].rows() : 0;
    gate_ = parts.Take(inner);
    up_ = parts.Take(inner);
    return std::max<int64_t>(parts.used(), 1);
  }

  // y = RmsNorm(x) of `rows` rows.
  void Norm(const at::Tensor& norm, const float* x, int64_t rows, float* y) {
    Normalise(x, rows, options_.norm_plus_one ? norm + 1.0 : norm, options_.eps,
              y, rstd_);
  }

  // Normalised rows, or x itself.
  const float* Before(const at::Tensor& norm, const float* x) {
    if (!norm.defined()) return x;
    Norm(norm, x, rows_, normed_);
    return normed_;
  }

  // out = from + the layer of x, normalised if there is a norm.
  void AddBranch(const LinearPart& part, const float* x, int64_t width,
                 const at::Tensor& norm, const float* from) {
    float* const out = Data(out_);
    const int64_t n = rows_ * hidden_;
    if (!norm.defined()) {
      if (from != out) std::memcpy(out, from, n * sizeof(float));
      return Project(x, rows_, width, {{&part, out, /*add=*/true}});
    }
    Project(x, rows_, width, {{&part, normed_, false}});
    Norm(norm, normed_, rows_, normed_);
    Add(from, normed_, n, out);
  }

  void Attention() {
    const AttentionWeights& w = weights_.attention;
    const int64_t q = shape_.heads * shape_.head_dim;
    const int64_t kv = shape_.kv_heads * shape_.head_dim;
    // Whoever appends them may keep them.
    const at::Tensor k = at::empty({rows_, kv}, out_.options());
    const at::Tensor v = at::empty({rows_, kv}, out_.options());
    const float* const n = Before(w.norm, x_);
    Project(n, rows_, hidden_,
            {{&linears_[kQueryMatrix], q_, false},
             {&linears_[kKeyMatrix], Data(k), false},
             {&linears_[kValueMatrix], Data(v), false}});
    if (w.q_norm.defined()) {
      NormaliseHeads(w.q_norm, shape_.heads, q_);
      NormaliseHeads(w.k_norm, shape_.kv_heads, Data(k));
    }
    Rotate(options_, rows_, shape_.heads, q_);
    Rotate(options_, rows_, shape_.kv_heads, Data(k));
    const CachedKeyValue all = options_.cache->Append(k, v);
    const float* mixed = mixed_;
    at::Tensor made;
    if (rows_ == shape_.batch && shape_.softcap == 0.0 && !AsInTraining()) {
      OneQuery(shape_, all, options_.first).Run(q_, mixed_);
    } else {
      made = CachedAttention(ViewOf(q_, rows_, q), all.k, all.v, shape_,
                             options_.first);
      mixed = ConstData(made);
    }
    AddBranch(linears_[kOutputMatrix], mixed, q, weights_.attention_post_norm,
              x_);
  }

  void NormaliseHeads(const at::Tensor& norm, int64_t heads, float* x) {
    const int64_t norms = heads * shape_.head_dim / norm.size(0);
    Norm(norm, x, rows_ * norms, x);
  }

  void Mlp() {
    const GatedMlpWeights& w = weights_.mlp;
    const float* const y = Data(out_);
    const float* const n = Before(w.norm, y);
    const LinearPart& gate = linears_[kGateMatrix];
    const LinearPart& up = linears_[kUpMatrix];
    Project(n, rows_, hidden_, {{&gate, gate_, false}, {&up, up_, false}});
    Gate(options_.activation, gate_, up_, rows_ * gate.rows(), gate_);
    AddBranch(linears_[kDownMatrix], gate_, gate.rows(), w.post_norm, y);
  }

  const float* const x_;
  const TransformerBlockWeights& weights_;
  const TransformerBlockOptions& options_;
  const AttentionShape& shape_;
  const int64_t rows_;
  const int64_t hidden_;
  const BlockLinears linears_;
  const at::Tensor out_;
  at::Tensor memory_;
  float *normed_, *rstd_, *q_, *mixed_, *gate_, *up_;
};

}  // namespace

bool CanDecode(const at::Tensor& x) {
  return FastPath(x) && x.is_contiguous() && !at::GradMode::is_enabled();
}

at::Tensor DecodeBlock(const at::Tensor& x,
                       const TransformerBlockWeights& weights,
                       const TransformerBlockOptions& options) {
  return Decode(x, weights, options).Run();
}

at::Tensor DecodeHead(const at::Tensor& x, const at::Tensor& norm,
                      const Weight& head, double eps, bool plus_one) {
  const int64_t rows = x.size(0), width = x.size(1);
  const at::Tensor n = at::empty({rows, width}, x.options());
  const at::Tensor rstd = at::empty({rows}, x.options());
  Normalise(ConstData(x), rows, plus_one ? norm + 1.0 : norm, eps, Data(n),
            Data(rstd));
  at::Tensor logits = at::empty({rows, head.rows()}, x.options());
  FewRowsProduct product;
  product.w = StoredOf(head);
  product.y = Data(logits);
  product.y_stride = head.rows();
  StoredLinearInto(ConstData(n), width, rows, product);
  return logits;
}

}  // namespace capstan::kernels
