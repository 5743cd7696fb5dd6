// SPDX-License-Identifier: Apache-2.0
//
// The three fused attentions below ATen's scaled_dot_product_attention, whose
// own checks and choice stay LibTorch's: FlashAttention-2, memory-efficient
// (CUTLASS) and cuDNN's.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/standin/operators/arguments.h"
#include "testing/standin/operators/attention_math.h"
#include "testing/standin/operators/cost.h"
#include "testing/standin/operators/special.h"

namespace capstan::standin {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor Of(const OptionalTensor& t) { return t.has_value() ? *t : Tensor(); }

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

double ScaleOf(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
}

void CheckSupported(double dropout_p, bool debug_mask = false) {
  TORCH_CHECK(dropout_p == 0.0 && !debug_mask,
              "the stand-in CUDA device has no dropout in attention: add it to "
              "testing/standin/operators/attention.cc");
}

// The Philox state that forward hands to backward; unused without dropout.
Tensor Seed(const Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kUInt64));
}

// A work of `name` that calls run. Undefined tensors are left out.
void EnqueueAttention(const std::string& name, const std::vector<Tensor>& reads,
                      const std::vector<Tensor>& writes, double flops,
                      int launches, std::function<void()> run) {
  Work work;
  work.name = name;
  for (const Tensor& t : reads) {
    if (SpanOf(t).bytes == 0) continue;
    work.reads.push_back(SpanOf(t));
    work.cost.bytes_read += BytesOf(t);
  }
  for (const Tensor& t : writes) {
    if (SpanOf(t).bytes == 0) continue;
    work.writes.push_back(SpanOf(t));
    work.cost.bytes_written += BytesOf(t);
  }
  work.cost.flops = flops;
  work.cost.unit = UnitOfProducts(reads[0].scalar_type());
  work.cost.launches = launches;
  work.run = [run = std::move(run)] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    run();
    return Progress::kDone;
  };
  EnqueueOn(reads[0].get_device(), std::move(work));
}

// [B, M, H, D] to [B, H, M, D]
Tensor HeadsFirst(const Tensor& t) {
  return t.defined() ? t.transpose(1, 2) : t;
}

// ---- Flash ----

struct FlashCall {
  Tensor q, k, v;  // [B, M, H, D], or [tokens, H, D] with documents' ends
  Tensor ends_q, ends_k;  // [documents + 1] int32, or undefined
  double scale = 1.0;
  int64_t left = -1, right = -1;
  int64_t max_q = 0, max_k = 0;

  bool packed() const { return ends_q.defined(); }
  AttentionSizes Sizes() const {
    AttentionSizes sizes;
    // The lengths of documents are on the device: as if each were the longest.
    sizes.batch = packed() ? 1 : q.size(0);
    sizes.queries = packed() ? q.size(0) : q.size(1);
    sizes.keys = packed() ? max_k : k.size(1);
    sizes.heads = q.size(-2);
    sizes.head_dim = q.size(-1);
    sizes.causal = right == 0;
    sizes.window = left >= 0 ? left + 1 + std::max<int64_t>(right, 0) : 0;
    return sizes;
  }
  FlashCall OnHost() const {
    FlashCall host = *this;
    for (Tensor* t : {&host.q, &host.k, &host.v, &host.ends_q, &host.ends_k}) {
      *t = HostAlias(*t);
    }
    return host;
  }
};

void CheckFlash(const FlashCall& call) {
  const int64_t dim = call.q.size(-1);
  TORCH_CHECK(call.q.scalar_type() == at::kHalf ||
                  call.q.scalar_type() == at::kBFloat16,
              "FlashAttention only support fp16 and bf16 data type");
  TORCH_CHECK(call.k.scalar_type() == call.q.scalar_type() &&
                  call.v.scalar_type() == call.q.scalar_type(),
              "query, key and value must have the same dtype");
  TORCH_CHECK(call.q.stride(-1) == 1 && call.k.stride(-1) == 1 &&
                  call.v.stride(-1) == 1,
              "Input tensor must have contiguous last dimension");
  TORCH_CHECK(dim % 8 == 0 && dim <= 256,
              "FlashAttention only supports head dimensions that are multiples "
              "of 8 and at most 256");
  TORCH_CHECK(call.q.size(-2) % call.k.size(-2) == 0,
              "Number of heads in key/value must divide number of heads in "
              "query");
  if (!call.packed()) return;
  for (const Tensor& ends : {call.ends_q, call.ends_k}) {
    TORCH_CHECK(
        ends.scalar_type() == at::kInt && ends.is_cuda() &&
            ends.is_contiguous() && ends.dim() == 1,
        "cu_seqlens must be contiguous int32 [documents + 1] on the GPU");
  }
  TORCH_CHECK(call.ends_q.numel() == call.ends_k.numel(),
              "cu_seqlens_q and cu_seqlens_k differ in size");
}

// One sequence, heads first, of a call on the host; the rest of its tensors
// are cut like q.
struct Part {
  AttentionInputs inputs;
  int64_t q_begin = 0, q_length = 0, k_begin = 0, k_length = 0;
};

Tensor Cut(const Tensor& t, int64_t begin, int64_t length) {
  return t.narrow(0, begin, length).unsqueeze(0).transpose(1, 2);
}

void ForEachPart(const FlashCall& host,
                 const std::function<void(const Part&)>& f) {
  const auto visible = [&](int64_t queries, int64_t keys) {
    return Visible{keys - queries, host.left, host.right};
  };
  if (!host.packed()) {
    f({{HeadsFirst(host.q), HeadsFirst(host.k), HeadsFirst(host.v), Tensor(),
        visible(host.q.size(1), host.k.size(1)), host.scale},
       0,
       host.q.size(0),
       0,
       host.k.size(0)});
    return;
  }
  const int32_t* q_ends = host.ends_q.const_data_ptr<int32_t>();
  const int32_t* k_ends = host.ends_k.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < host.ends_q.numel(); ++i) {
    Part part;
    part.q_begin = q_ends[i];
    part.q_length = q_ends[i + 1] - q_ends[i];
    part.k_begin = k_ends[i];
    part.k_length = k_ends[i + 1] - k_ends[i];
    if (part.q_length == 0) continue;
    TORCH_CHECK(
        part.q_length > 0 && part.q_length <= host.max_q &&
            part.k_length >= 0 && part.k_length <= host.max_k &&
            q_ends[i + 1] <= host.q.size(0) && k_ends[i + 1] <= host.k.size(0),
        "cu_seqlens [", part.q_begin, ", ", q_ends[i + 1], ") of document ", i,
        " don't fit max_q ", host.max_q, " or the tensors");
    part.inputs = {Cut(host.q, part.q_begin, part.q_length),
                   Cut(host.k, part.k_begin, part.k_length),
                   Cut(host.v, part.k_begin, part.k_length),
                   Tensor(),
                   visible(part.q_length, part.k_length),
                   host.scale};
    f(part);
  }
}

Tensor QueryPart(const Tensor& t, const FlashCall& host, const Part& part) {
  return host.packed() ? Cut(t, part.q_begin, part.q_length) : HeadsFirst(t);
}
Tensor KeyPart(const Tensor& t, const FlashCall& host, const Part& part) {
  return host.packed() ? Cut(t, part.k_begin, part.k_length) : HeadsFirst(t);
}
// Of [B, H, M], or [H, tokens].
Tensor SumsPart(const Tensor& t, const FlashCall& host, const Part& part) {
  return host.packed() ? t.narrow(1, part.q_begin, part.q_length).unsqueeze(0)
                       : t;
}

FlashCall MakeFlashCall(const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& ends_q, const Tensor& ends_k,
                        int64_t max_q, int64_t max_k, bool causal,
                        std::optional<double> scale,
                        std::optional<int64_t> left,
                        std::optional<int64_t> right) {
  FlashCall call;
  call.q = q;
  call.k = k;
  call.v = v;
  call.ends_q = ends_q;
  call.ends_k = ends_k;
  call.max_q = max_q;
  call.max_k = max_k;
  call.scale = ScaleOf(q, scale);
  call.left = left.value_or(-1);
  call.right = causal ? 0 : right.value_or(-1);
  CheckFlash(call);
  return call;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> FlashForward(
    const Tensor& q, const Tensor& k, const Tensor& v,
    const OptionalTensor& ends_q, const OptionalTensor& ends_k, int64_t max_q,
    int64_t max_k, double dropout_p, bool causal, bool debug_mask,
    std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right, const OptionalTensor& used_k,
    const OptionalTensor& slopes) {
  CheckSupported(dropout_p, debug_mask);
  TORCH_CHECK(!Of(used_k).defined() && !Of(slopes).defined(),
              "the stand-in CUDA device has neither seqused_k nor ALiBi");
  const c10::cuda::CUDAGuard on_device(q.device());
  const FlashCall call = MakeFlashCall(q, k, v, Of(ends_q), Of(ends_k), max_q,
                                       max_k, causal, scale, left, right);
  Tensor out = at::empty_like(q);
  Tensor sums = at::empty(
      call.packed() ? std::vector<int64_t>{q.size(1), q.size(0)}
                    : std::vector<int64_t>{q.size(0), q.size(2), q.size(1)},
      q.options().dtype(at::kFloat));
  EnqueueAttention(
      "aten::_flash_attention_forward", {q, k, v, call.ends_q, call.ends_k},
      {out, sums}, AttentionFlops(call.Sizes()), /*launches=*/1,
      [host = call.OnHost(), out = HostAlias(out), sums = HostAlias(sums)] {
        ForEachPart(host, [&](const Part& part) {
          AttentionForward(part.inputs, QueryPart(out, host, part),
                           SumsPart(sums, host, part));
        });
      });
  return {out, sums, Seed(q, {2}), Seed(q, {}), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> FlashBackward(
    const Tensor& d_out_any, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out_any, const Tensor& sums, const Tensor& ends_q,
    const Tensor& ends_k, int64_t max_q, int64_t max_k, double dropout_p,
    bool causal, const Tensor& /*rng_state*/, const Tensor& /*unused*/,
    std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right) {
  CheckSupported(dropout_p);
  const c10::cuda::CUDAGuard on_device(q.device());
  const FlashCall call = MakeFlashCall(q, k, v, ends_q, ends_k, max_q, max_k,
                                       causal, scale, left, right);
  const Tensor d_out = d_out_any.contiguous(), out = out_any.contiguous();
  Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  // Its workspaces: dq in float32, each query's dot product, and for grouped
  // heads the gradients of each head (flash_api.cpp, mha_bwd).
  const int64_t rows = call.packed() ? q.size(0) + 128 * ends_q.numel()
                                     : q.size(0) * RoundUp(q.size(1), 128);
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  const Tensor dots = at::empty({rows * q.size(-2)}, floats);
  const Tensor dq_sum =
      at::empty({rows * q.size(-2), RoundUp(q.size(-1), 32)}, floats);
  const bool grouped = k.size(-2) != q.size(-2);
  Tensor dk_heads, dv_heads;
  if (grouped) {
    std::vector<int64_t> sizes = k.sizes().vec();
    sizes[sizes.size() - 2] = q.size(-2);
    dk_heads = at::empty(sizes, k.options());
    dv_heads = at::empty(sizes, k.options());
  }
  EnqueueAttention(
      "aten::_flash_attention_backward",
      {q, k, v, d_out, out, sums, ends_q, ends_k},
      {dq, dk, dv, dots, dq_sum, dk_heads, dv_heads},
      AttentionBackwardFlops(call.Sizes()), /*launches=*/grouped ? 5 : 3,
      [host = call.OnHost(), d_out = HostAlias(d_out), out = HostAlias(out),
       sums = HostAlias(sums), dq = HostAlias(dq), dk = HostAlias(dk),
       dv = HostAlias(dv)] {
        if (host.packed()) {  // tokens of no document
          for (Tensor t : {dq, dk, dv}) t.zero_();
        }
        ForEachPart(host, [&](const Part& part) {
          AttentionBackward(part.inputs, QueryPart(d_out, host, part),
                            QueryPart(out, host, part),
                            SumsPart(sums, host, part),
                            QueryPart(dq, host, part), KeyPart(dk, host, part),
                            KeyPart(dv, host, part), Tensor());
        });
      });
  return {dq, dk, dv};
}

// ---- Memory-efficient ----

constexpr int64_t kCausalFromTopLeft = 1, kCausalFromBottomRight = 2;
constexpr int64_t kAlignedSums = 32;  // queries

AttentionInputs EfficientInputs(const Tensor& q, const Tensor& k,
                                const Tensor& v, const Tensor& bias,
                                int64_t mask_type, std::optional<double> scale,
                                std::optional<int64_t> window) {
  AttentionInputs in = {HeadsFirst(q), HeadsFirst(k), HeadsFirst(v),
                        bias,          Visible(),     ScaleOf(q, scale)};
  if (mask_type == kCausalFromBottomRight) {
    in.visible.shift = k.size(1) - q.size(1);
  }
  if (mask_type != 0) in.visible.right = 0;
  if (window.value_or(0) > 0) in.visible.left = *window - 1;
  return in;
}

AttentionSizes EfficientSizes(const Tensor& q, const Tensor& k,
                              int64_t mask_type) {
  return {q.size(0), q.size(2),      q.size(1), k.size(1),
          q.size(3), mask_type != 0, 0};
}

void CheckEfficient(const Tensor& q, const Tensor& k, const Tensor& bias,
                    const OptionalTensor& ends) {
  TORCH_CHECK(!Of(ends).defined(),
              "the stand-in CUDA device has no memory-efficient attention with "
              "cu_seqlens");
  TORCH_CHECK(q.dim() == 4 && q.size(2) == k.size(2),
              "memory-efficient attention has no grouped heads");
  if (!bias.defined()) return;
  TORCH_CHECK(bias.scalar_type() == q.scalar_type(),
              "invalid dtype for bias - should match query's dtype");
  // Vector loads of 16 bytes (kernel_forward.h, check_supported).
  const int64_t aligned = 16 / q.element_size();
  TORCH_CHECK(
      bias.stride(1) % aligned == 0 || bias.size(1) <= 1 || bias.stride(1) == 0,
      "attn_bias is not correctly aligned (strideH)");
  TORCH_CHECK(bias.stride(2) % aligned == 0 || bias.size(2) <= 1,
              "attn_bias is not correctly aligned (strideM)");
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt>
EfficientForward(const Tensor& q, const Tensor& k, const Tensor& v,
                 const OptionalTensor& bias_any, const OptionalTensor& ends_q,
                 const OptionalTensor& /*ends_k*/,
                 std::optional<int64_t> /*max_q*/,
                 std::optional<int64_t> /*max_k*/, double dropout_p,
                 int64_t mask_type, bool want_sums, std::optional<double> scale,
                 const OptionalTensor& /*lengths_k*/,
                 std::optional<int64_t> window) {
  CheckSupported(dropout_p);
  const Tensor bias = Of(bias_any);
  CheckEfficient(q, k, bias, ends_q);
  const c10::cuda::CUDAGuard on_device(q.device());
  const int64_t queries = q.size(1);
  Tensor out =
      at::empty({q.size(0), queries, q.size(2), v.size(3)}, q.options());
  Tensor sums = at::empty(
      {q.size(0), q.size(2), want_sums ? RoundUp(queries, kAlignedSums) : 0},
      q.options().dtype(at::kFloat));
  EnqueueAttention(
      "aten::_efficient_attention_forward", {q, k, v, bias}, {out, sums},
      AttentionFlops(EfficientSizes(q, k, mask_type)), /*launches=*/1,
      [in = EfficientInputs(HostAlias(q), HostAlias(k), HostAlias(v),
                            HostAlias(bias), mask_type, scale, window),
       out = HeadsFirst(HostAlias(out)), sums = HostAlias(sums), want_sums,
       queries] {
        AttentionForward(in, out,
                         want_sums ? sums.narrow(2, 0, queries) : Tensor());
      });
  return {out, sums, Seed(q, {}), Seed(q, {}), queries, k.size(1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> EfficientBackward(
    const Tensor& d_out_any, const Tensor& q, const Tensor& k, const Tensor& v,
    const OptionalTensor& bias_any, const Tensor& out,
    const OptionalTensor& ends_q, const OptionalTensor& /*ends_k*/,
    int64_t /*max_q*/, int64_t /*max_k*/, const Tensor& sums, double dropout_p,
    const Tensor& /*seed*/, const Tensor& /*offset*/, int64_t mask_type,
    bool want_bias, std::optional<double> scale,
    std::optional<int64_t> /*splits*/, std::optional<int64_t> window,
    bool /*shared_storage*/) {
  CheckSupported(dropout_p);
  const Tensor bias = Of(bias_any), d_out = d_out_any.contiguous();
  CheckEfficient(q, k, bias, ends_q);
  const c10::cuda::CUDAGuard on_device(q.device());
  Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  Tensor d_bias;
  if (want_bias) d_bias = at::empty_like(bias);
  const int64_t queries = q.size(1);
  // Each query's dot product, and dq in float32 (kernel_backward.h).
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  const Tensor dots =
      at::empty({q.size(0), q.size(2), RoundUp(queries, 16)}, floats);
  Tensor dq_sum;
  if (q.scalar_type() != at::kFloat) dq_sum = at::empty(q.sizes(), floats);
  EnqueueAttention(
      "aten::_efficient_attention_backward", {q, k, v, bias, d_out, out, sums},
      {dq, dk, dv, d_bias, dots, dq_sum},
      AttentionBackwardFlops(EfficientSizes(q, k, mask_type)), /*launches=*/2,
      [in = EfficientInputs(HostAlias(q), HostAlias(k), HostAlias(v),
                            HostAlias(bias), mask_type, scale, window),
       d_out = HeadsFirst(HostAlias(d_out)), out = HeadsFirst(HostAlias(out)),
       sums = HostAlias(sums).narrow(2, 0, queries),
       dq = HeadsFirst(HostAlias(dq)), dk = HeadsFirst(HostAlias(dk)),
       dv = HeadsFirst(HostAlias(dv)), d_bias = HostAlias(d_bias)] {
        AttentionBackward(in, d_out, out, sums, dq, dk, dv, d_bias);
      });
  return {dq, dk, dv, d_bias};
}

// ---- cuDNN: heads first ----

// The planted fault, if any.
bool CudnnIs(const char* fault) {
  static const std::string planted = Setting("cudnn", "");
  return planted == fault;
}

AttentionInputs CudnnInputs(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& bias, bool causal,
                            std::optional<double> scale) {
  AttentionInputs in = {q, k, v, bias, Visible(), ScaleOf(q, scale)};
  if (causal) in.visible.right = 0;
  return in;
}

AttentionSizes CudnnSizes(const Tensor& q, const Tensor& k, bool causal) {
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), causal, 0};
}

// Laid out like the query: its dimensions in the same order.
Tensor LikeQuery(const Tensor& q, int64_t channels) {
  std::vector<int64_t> order = {0, 1, 2, 3}, sizes = q.sizes().vec(),
                       strides(4);
  sizes[3] = channels;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return q.stride(a) < q.stride(b);
  });
  int64_t stride = 1;
  for (int64_t d : order) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  return at::empty_strided(sizes, strides, q.options());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor,
           Tensor, Tensor>
CudnnForward(const Tensor& q, const Tensor& k, const Tensor& v,
             const OptionalTensor& bias_any, const OptionalTensor& ends_q,
             const OptionalTensor& /*ends_k*/, int64_t max_q, int64_t max_k,
             bool want_sums, double dropout_p, bool causal, bool debug_mask,
             std::optional<double> scale) {
  CheckSupported(dropout_p, debug_mask);
  TORCH_CHECK(!Of(ends_q).defined(),
              "the stand-in CUDA device has no cuDNN attention with lengths");
  TORCH_CHECK(!CudnnIs("refuses"),
              "No valid execution plans built. (planted: cudnn=refuses)");
  const c10::cuda::CUDAGuard on_device(q.device());
  const Tensor bias = Of(bias_any);
  Tensor out = LikeQuery(q, v.size(3)), sums;
  if (want_sums) {
    sums = at::empty({q.size(0), q.size(1), q.size(2), 1},
                     q.options().dtype(at::kFloat));
  }
  EnqueueAttention(
      "aten::_cudnn_attention_forward", {q, k, v, bias}, {out, sums},
      AttentionFlops(CudnnSizes(q, k, causal)), /*launches=*/1,
      [in = CudnnInputs(HostAlias(q), HostAlias(k), HostAlias(v),
                        HostAlias(bias), causal, scale),
       out = HostAlias(out), sums = HostAlias(sums)] {
        AttentionForward(in, out, sums.defined() ? sums.squeeze(3) : sums);
      });
  return {out,   sums,        Tensor(),    Tensor(), max_q,
          max_k, Seed(q, {}), Seed(q, {}), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> CudnnBackward(
    const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out, const Tensor& sums, const Tensor& /*seed*/,
    const Tensor& /*offset*/, const Tensor& bias, const Tensor& ends_q,
    const Tensor& /*ends_k*/, int64_t /*max_q*/, int64_t /*max_k*/,
    double dropout_p, bool causal, std::optional<double> scale) {
  CheckSupported(dropout_p);
  TORCH_CHECK(!ends_q.defined(),
              "the stand-in CUDA device has no cuDNN attention with lengths");
  const c10::cuda::CUDAGuard on_device(q.device());
  Tensor dq = LikeQuery(q, q.size(3)), dk = LikeQuery(k, k.size(3)),
         dv = LikeQuery(v, v.size(3));
  // Its workspace: dq in float32 and each query's dot product (cudnn-frontend,
  // CompositeSDPABackwardNode: dQ_accum and softmax_sum). For grouped heads its
  // graph also has the gradients of each head, which are the backend's own:
  // taken to be in memory, as the flash kernel's are.
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  const Tensor dq_sum = at::empty(q.sizes(), floats);
  const Tensor dots = at::empty(q.sizes().slice(0, 3), floats);
  Tensor of_heads;
  if (k.size(1) != q.size(1)) {
    of_heads =
        at::empty({2, q.size(0), q.size(1), k.size(2), q.size(3)}, k.options());
  }
  EnqueueAttention(
      "aten::_cudnn_attention_backward", {q, k, v, bias, d_out, out, sums},
      {dq, dk, dv, dq_sum, dots, of_heads},
      AttentionBackwardFlops(CudnnSizes(q, k, causal)),
      /*launches=*/3,
      [in = CudnnInputs(HostAlias(q), HostAlias(k), HostAlias(v),
                        HostAlias(bias), causal, scale),
       d_out = HostAlias(d_out), out = HostAlias(out),
       sums = HostAlias(sums).squeeze(3), dq = HostAlias(dq),
       dk = HostAlias(dk), dv = HostAlias(dv)] {
        AttentionBackward(in, d_out, out, sums, dq, dk, dv, Tensor());
        if (CudnnIs("wrong")) dq.select(2, -1).zero_();  // of the last queries
      });
  return {dq, dk, dv};
}

}  // namespace

void AddAttention(torch::Library& library) {
  library.impl("_flash_attention_forward", TORCH_FN(FlashForward));
  library.impl("_flash_attention_backward", TORCH_FN(FlashBackward));
  library.impl("_efficient_attention_forward", TORCH_FN(EfficientForward));
  library.impl("_efficient_attention_backward", TORCH_FN(EfficientBackward));
  library.impl("_cudnn_attention_forward", TORCH_FN(CudnnForward));
  library.impl("_cudnn_attention_backward", TORCH_FN(CudnnBackward));
}

}  // namespace capstan::standin
