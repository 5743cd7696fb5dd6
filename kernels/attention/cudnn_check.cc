// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cudnn_check.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/attention/flash.h"

namespace capstan::kernels {
namespace {

// Two tiles of most kernels' and a part of one, as at the end of the rows.
constexpr int64_t kTile = 128;

// [1, heads, length, head_dim], laid out by token as in training.
struct MadeUp {
  at::Tensor q, k, v, d_out;
  bool causal = true;
  std::optional<double> scale;
};

// Numbers up to `size` that look random, but leave the run's generators alone.
at::Tensor Numbers(double seed, double size, int64_t heads, int64_t length,
                   int64_t head_dim, const at::TensorOptions& options) {
  const at::Tensor n =
      at::arange(length * heads * head_dim, options.dtype(at::kDouble));
  return n.mul(n).mul_(seed).sin_().mul_(size).to(options).view(
      {1, length, heads, head_dim});
}

MadeUp MakeUp(const AttentionShape& shape, int64_t length,
              const at::TensorOptions& options) {
  const auto numbers = [&](double seed, double size, int64_t heads) {
    return Numbers(seed, size, heads, length, shape.head_dim, options)
        .transpose(1, 2);
  };
  MadeUp made;
  made.q = numbers(0.37, 2.0, shape.heads);
  made.k = numbers(0.41, 1.0, shape.kv_heads);
  made.v = numbers(0.43, 1.0, shape.kv_heads);
  made.d_out = numbers(0.47, 1.0, shape.heads);
  made.causal = shape.causal;
  if (shape.scale != 0.0) made.scale = shape.scale;
  return made;
}

constexpr const char* kResults[] = {"output", "gradient to q", "gradient to k",
                                    "gradient to v"};
using Results = std::array<at::Tensor, 4>;

Results ByCudnn(const MadeUp& in) {
  const auto [out, sums, ends_q, ends_k, max_q, max_k, seed, offset, mask] =
      at::_scaled_dot_product_cudnn_attention(
          in.q, in.k, in.v, /*attn_bias=*/{}, /*compute_log_sumexp=*/true,
          /*dropout_p=*/0.0, in.causal, /*return_debug_mask=*/false, in.scale);
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      in.d_out, in.q, in.k, in.v, out, sums, seed, offset, /*attn_bias=*/{},
      ends_q, ends_k, max_q.expect_int(), max_k.expect_int(), /*dropout_p=*/0.0,
      in.causal, in.scale);
  return {out, dq, dk, dv};
}

Results ByFlash(const MadeUp& in) {
  const auto [out, sums, ends_q, ends_k, max_q, max_k, state, unused, mask] =
      at::_scaled_dot_product_flash_attention(
          in.q, in.k, in.v, /*dropout_p=*/0.0, in.causal,
          /*return_debug_mask=*/false, in.scale);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      in.d_out, in.q, in.k, in.v, out, sums, ends_q, ends_k, max_q.expect_int(),
      max_k.expect_int(), /*dropout_p=*/0.0, in.causal, state, unused,
      in.scale);
  return {out, dq, dk, dv};
}

// The largest difference, relative to the size of its token's head, or of all
// numbers where that one's are small: one wrong row is enough to show.
at::Tensor Apart(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor floats = wanted.to(at::kFloat), size = floats.abs();
  return got.to(at::kFloat)
      .sub(floats)
      .abs_()
      .div_(size.amax(-1, /*keepdim=*/true).add_(size.mean()))
      .max();
}

// Both kernels sum in float32 and round to 16 bits the probabilities, the
// output that backward reads, the gradients of the scores, and the results. The
// CPU's loops, which round the same, come within 9 roundings (half a unit in
// the last place each) of the exact values on these numbers (cudnn_check_test):
// two kernels are within 18 of each other, and some room. A wrong number is off
// by more than 100.
double Bound(at::ScalarType type) {
  const double rounding = type == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  return 32 * rounding;
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string CudnnAttentionFault(const AttentionShape& shape, int64_t length,
                                const at::TensorOptions& options) {
  const at::AutoGradMode no_gradients(false);
  const MadeUp in = MakeUp(shape, length, options);
  Results cudnn;
  try {
    cudnn = ByCudnn(in);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    return "it refuses: " + FirstLine(error.what_without_backtrace());
  }
  const Results flash = ByFlash(in);
  std::vector<at::Tensor> apart;
  for (size_t i = 0; i < flash.size(); ++i) {
    apart.push_back(Apart(cudnn[i], flash[i]));
  }
  const at::Tensor on_host = at::stack(apart).cpu();
  const double bound = Bound(c10::typeMetaToScalarType(options.dtype()));
  for (size_t i = 0; i < flash.size(); ++i) {
    const float found = on_host.const_data_ptr<float>()[i];
    if (!(found <= bound)) {  // not a number, too
      return c10::str("its ", kResults[i], " differs from theirs by ", found,
                      " of its size, where rounding explains ", bound);
    }
  }
  return "";
}

void CheckCudnnAttention(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const AttentionShape& shape) {
  if (!at::globalContext().userEnabledCuDNNSDP() ||
      !CanUseFlash(q, shape, nullptr)) {
    return;
  }
  static std::mutex mutex;
  static auto* const seen = new std::set<
      std::tuple<int, at::ScalarType, int64_t, int64_t, int64_t, bool, double>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::tuple key(static_cast<int>(q.get_device()), q.scalar_type(),
                       shape.heads, shape.kv_heads, shape.head_dim,
                       shape.causal, shape.scale);
  if (seen->count(key) > 0) return;
  const auto heads = [&](const at::Tensor& x) {
    return x
        .reshape({shape.batch, -1, x.size(-1) / shape.head_dim, shape.head_dim})
        .transpose(1, 2);
  };
  const int64_t choice = at::_fused_sdp_choice(
      heads(q), heads(k), heads(v), /*attn_mask=*/{}, /*dropout_p=*/0.0,
      shape.causal, /*scale=*/{}, shape.heads != shape.kv_heads);
  std::string fault;
  if (choice == static_cast<int64_t>(at::SDPBackend::cudnn_attention)) {
    const int64_t length = q.size(0) / shape.batch;
    fault = CudnnAttentionFault(shape, 2 * kTile + length % kTile, q.options());
  }
  seen->insert(key);
  if (fault.empty()) return;
  at::globalContext().setSDPUseCuDNN(false);
  TORCH_WARN(
      "cuDNN's attention isn't used, but the flash kernels, from here "
      "on: of ",
      shape.heads, " heads of ", shape.head_dim, " on ", shape.kv_heads,
      shape.causal ? ", causal, in " : ", bidirectional, in ", q.scalar_type(),
      ", ", fault);
}

}  // namespace capstan::kernels
