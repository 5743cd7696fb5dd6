// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/fused_block.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "base/simd/tanh.h"
#include "kernels/attention/attention.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/keep.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/stored_linear.h"
#include "kernels/layers/transformer_block.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kX = 0;  // the node's first input

enum Norm {
  kInputNorm,
  kQueryNorm,
  kKeyNorm,
  kAttentionPostNorm,
  kMlpNorm,
  kMlpPostNorm,
  kNorms
};

// A forward that waits for its backward.
struct Call {
  at::Tensor x;
  std::array<at::Tensor, kNorms> norms;
  std::array<int, kNorms> norm_inputs;  // of the node
  std::vector<StoredLinear> stored;
  std::array<LinearPart, kBlockMatrices> parts;
  TransformerBlockOptions options;
  FusedDims dims;
  int inputs = 0;  // of the node
  at::Tensor kept;

  // What a norm multiplies by.
  at::Tensor Factor(Norm norm) const {
    return options.norm_plus_one ? norms[norm].detach() + 1.0 : norms[norm];
  }
  void Release() {
    kept.reset();
    x.reset();
    norms = {};
    parts = {};
    stored.clear();
  }
};

at::Tensor Space(int64_t floats, const at::Tensor& like) {
  return at::empty({floats}, like.options().requires_grad(false));
}

template <typename Body>
void ForRows(int64_t rows, int64_t width, const Body& body) {
  at::parallel_for(0, rows, RowGrain(width), body);
}

// [rows, width] over existing memory that outlives it.
at::Tensor View(const float* data, int64_t rows, int64_t width) {
  return at::from_blob(const_cast<float*>(data), {rows, width}, at::kFloat);
}

// Whether a layer is no more than a product with a matrix in memory.
bool IsProduct(const LinearPart& part) {
  return !part.weight.packed() && !part.bias.defined() &&
         !part.adapter.defined();
}

// y [rows, part.rows()] = the layer of x + beta * y.
void Project(const LinearPart& part, const float* x, int64_t rows, float beta,
             float* y) {
  const int64_t n = part.rows(), width = part.columns();
  if (!IsProduct(part)) {
    return ForwardInto(part, View(x, rows, width), View(y, rows, n), beta);
  }
  const ProfileScope profile("matrix products");
  Gemm(Transpose::kRight, rows, n, width, 1.0f, {x, width},
       {ConstData(part.weight.tensor), width}, beta, {y, n});
}

// dx [rows, part.columns()] = the gradient to x + beta * dx.
void ProjectBack(const LinearPart& part, const float* dy, int64_t rows,
                 float beta, float* dx) {
  const int64_t n = part.rows(), width = part.columns();
  if (!IsProduct(part)) {
    return BackwardInto(part, View(dy, rows, n), View(dx, rows, width), beta);
  }
  const ProfileScope profile("matrix products");
  Gemm(Transpose::kNone, rows, width, n, 1.0f, {dy, n},
       {ConstData(part.weight.tensor), width}, beta, {dx, width});
}

// RmsNorm of x [rows, width], with the factor [width]; rstd: [rows].
void Normalise(const float* x, int64_t rows, const at::Tensor& factor,
               double eps, float* y, float* rstd) {
  const ProfileScope profile("rms_norm");
  const float* w = ConstData(factor);
  const int64_t width = factor.size(0);
  ForRows(rows, width, [&](int64_t begin, int64_t end) {
    Simd().fp32.rms_norm(x + begin * width, w, static_cast<float>(eps),
                         end - begin, width, y + begin * width, rstd + begin);
  });
}

// The same y, from a given rstd.
void NormaliseAgain(const float* x, int64_t rows, const at::Tensor& factor,
                    const float* rstd, float* y) {
  const ProfileScope profile("rms_norm");
  const float* w = ConstData(factor);
  const int64_t width = factor.size(0);
  ForRows(rows, width, [&](int64_t begin, int64_t end) {
    Simd().fp32.rms_norm_again(x + begin * width, w, rstd + begin, end - begin,
                               width, y + begin * width);
  });
}

struct NormGradientBuffers {
  const float *dy, *x, *rstd, *residual;  // residual: or null
  float* dx;                              // may be dy
};

// dx = residual + the gradient to x [rows, width]; writes `weight_gradient`
// [width] if defined.
void NormaliseBackward(const NormGradientBuffers& p, int64_t rows,
                       const at::Tensor& factor,
                       const at::Tensor& weight_gradient) {
  const ProfileScope profile("rms_norm");
  const int64_t width = factor.size(0);
  // One sum per chunk of rows, so that threads don't share one.
  const int64_t pieces = std::max<int64_t>(
      1, std::min<int64_t>(at::get_num_threads(), rows / RowGrain(width)));
  const bool wanted = weight_gradient.defined();
  at::Tensor sums;
  if (wanted) {
    sums = pieces == 1 ? weight_gradient
                       : at::empty({pieces * width}, weight_gradient.options());
    sums.zero_();
  }
  float* const sum = wanted ? Data(sums) : nullptr;
  const float* w = ConstData(factor);
  at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t begin = rows * piece / pieces;
      const int64_t end = rows * (piece + 1) / pieces;
      const int64_t at = begin * width;
      Simd().fp32.rms_norm_backward(
          p.dy + at, p.x + at, w, p.rstd + begin,
          p.residual == nullptr ? nullptr : p.residual + at, end - begin, width,
          p.dx + at, wanted ? sum + piece * width : nullptr);
    }
  });
  if (wanted && pieces > 1) {
    at::sum_out(const_cast<at::Tensor&>(weight_gradient),
                sums.view({pieces, width}), {0});
  }
}

// out [rows, width] = a + b; out may be either.
void Add(const float* a, const float* b, int64_t rows, int64_t width,
         float* out) {
  at::Tensor sum = View(out, rows, width);
  at::add_out(sum, View(a, rows, width), View(b, rows, width));
}

// ApplyRope on x [rows, width].
void Rotate(const Call& call, RopeDirection direction, int64_t width,
            float* x) {
  if (!call.options.rope_table.defined()) return;
  at::Tensor view = View(x, call.dims.rows, width);
  ApplyRope(call.options.rope_table, direction, call.dims.shape.head_dim, view);
}

// act(gate) * up of `n` numbers.
void Gate(Activation activation, const float* gate, const float* up, int64_t n,
          float* out) {
  const ProfileScope profile("swiglu");
  const auto loop = activation == Activation::kSilu ? Simd().fp32.swiglu
                                                    : TanhLoops().fp32.geglu;
  ForRows(n, 1, [&](int64_t i, int64_t end) {
    loop(gate + i, up + i, end - i, out + i);
  });
}

// Replaces d_out by act(gate) * up, and gate and up by their gradients.
void GateBackward(Activation activation, float* gate, float* up, int64_t n,
                  float* d_out) {
  const ProfileScope profile("swiglu");
  const auto loop = activation == Activation::kSilu
                        ? Simd().fp32.swiglu_backward
                        : TanhLoops().fp32.geglu_backward;
  ForRows(n, 1, [&](int64_t i, int64_t end) {
    loop(gate + i, up + i, end - i, d_out + i, gate + i, up + i);
  });
}

class Forward {
 public:
  explicit Forward(Call* call)
      : call_(*call),
        d_(call->dims),
        memory_(Space(FusedForwardSpace(d_, nullptr).parts.used(), call->x)),
        kept_(d_, Data(call->kept)),
        space_(d_, Data(memory_)),
        out_(at::empty(call->x.sizes(), memory_.options())),
        x_(ConstData(call->x)) {}

  at::Tensor Run() {
    Attention();
    if (d_.mlp()) Mlp();
    return out_;
  }

 private:
  void Project(BlockMatrix matrix, const float* from, float beta, float* to) {
    kernels::Project(call_.parts[matrix], from, d_.rows, beta, to);
  }

  // Normalised rows, or x itself.
  const float* Before(Norm norm, const float* x, float* rstd) {
    if (!call_.norms[norm].defined()) return x;
    Normalise(x, d_.rows, call_.Factor(norm), call_.options.eps, space_.normed,
              rstd);
    return space_.normed;
  }

  // Of x [rows, norms * width], to y.
  void NormaliseHeads(Norm norm, int64_t norms, const float* x, float* rstd,
                      float* y) {
    Normalise(x, d_.rows * norms, call_.Factor(norm), call_.options.eps, y,
              rstd);
  }

  void Attention() {
    const float* const n = Before(kInputNorm, x_, kept_.rstd);
    Project(kQueryMatrix, n, 0.0f, kept_.q);
    Project(kKeyMatrix, n, 0.0f, kept_.k);
    Project(kValueMatrix, n, 0.0f, kept_.v);
    float *q = kept_.q, *k = kept_.k;
    if (d_.normed_qk()) {
      q = space_.q;
      k = space_.k;
      NormaliseHeads(kQueryNorm, d_.qk_norms(d_.shape.heads), kept_.q,
                     kept_.q_rstd, q);
      NormaliseHeads(kKeyNorm, d_.qk_norms(d_.shape.kv_heads), kept_.k,
                     kept_.k_rstd, k);
    }
    Rotate(call_, RopeDirection::kForward, d_.q(), q);
    Rotate(call_, RopeDirection::kForward, d_.kv(), k);
    {
      const ProfileScope profile("attention");
      AttentionForward({d_.shape, d_.rows, call_.options.packing.get()}, q, k,
                       kept_.v, kept_.mixed, kept_.log_sum_exp);
    }
    float* const out = Data(out_);
    if (d_.attention_post_norm) {
      Project(kOutputMatrix, kept_.mixed, 0.0f, kept_.branch);
      Normalise(kept_.branch, d_.rows, call_.Factor(kAttentionPostNorm),
                call_.options.eps, out, kept_.branch_rstd);
      Add(x_, out, d_.rows, d_.hidden, out);
      y_ = out;
      return;
    }
    float* const y = d_.mlp() ? kept_.y : out;
    std::memcpy(y, x_, d_.rows * d_.hidden * sizeof(float));
    Project(kOutputMatrix, kept_.mixed, 1.0f, y);
    y_ = y;
  }

  void Mlp() {
    const float* const n = Before(kMlpNorm, y_, kept_.post_rstd);
    Project(kGateMatrix, n, 0.0f, kept_.gate);
    Project(kUpMatrix, n, 0.0f, kept_.up);
    Gate(call_.options.activation, kept_.gate, kept_.up, d_.rows * d_.inner,
         space_.activation);
    float* const out = Data(out_);
    if (d_.mlp_post_norm) {
      Project(kDownMatrix, space_.activation, 0.0f, kept_.down);
      Normalise(kept_.down, d_.rows, call_.Factor(kMlpPostNorm),
                call_.options.eps, space_.branch, kept_.down_rstd);
      Add(y_, space_.branch, d_.rows, d_.hidden, out);
      return;
    }
    if (y_ != out) std::memcpy(out, y_, d_.rows * d_.hidden * sizeof(float));
    Project(kDownMatrix, space_.activation, 1.0f, out);
  }

  const Call& call_;
  const FusedDims& d_;
  const at::Tensor memory_;
  const FusedKept kept_;
  const FusedForwardSpace space_;
  const at::Tensor out_;
  const float* const x_;
  const float* y_ = nullptr;  // what the MLP gets
};

// One backward: reads and overwrites what forward kept.
class Backward {
 public:
  Backward(Call* call, AutogradContext* ctx, const at::Tensor& dy)
      : call_(*call),
        ctx_(ctx),
        d_(call->dims),
        kept_(d_, Data(call->kept)),
        memory_(Space(FusedBackwardSpace(d_, nullptr).parts.used(), dy)),
        space_(d_, Data(memory_)),
        x_(ConstData(call->x)),
        dy_(ConstData(dy)),
        gradients_(call->inputs + 1) {  // and the call
    of_stored_.reserve(call->stored.size());
    for (const StoredLinear& stored : call->stored) {
      of_stored_.emplace_back(stored, ctx, call->options.sink);
    }
  }

  variable_list Run() {
    const float* const d_y = d_.mlp() ? Mlp() : dy_;
    Attention(d_y);
    for (StoredGradients& of : of_stored_) of.MoveTo(&gradients_);
    return std::move(gradients_);
  }

 private:
  void ToInput(BlockMatrix matrix, const float* dy, float beta, float* dx) {
    ProjectBack(call_.parts[matrix], dy, d_.rows, beta, dx);
  }

  // dy^T x, and the gradients of the bias and the adapter, for dy [rows, n] and
  // x [rows, width].
  void Weight(BlockMatrix matrix, const float* dy, const float* x) {
    const LinearPart& part = call_.parts[matrix];
    StoredGradients& gradients = of_stored_[part.of];
    const int64_t n = part.rows(), width = part.columns();
    if (part.adapter.defined()) {
      gradients.AddAdapter(part, View(x, d_.rows, width), View(dy, d_.rows, n));
    }
    if (part.bias.defined()) gradients.AddBias(part, View(dy, d_.rows, n));
    const StoredGradients::Target target = gradients.MatrixOf(part);
    if (!target.gradient.defined()) return;
    const ProfileScope profile("matrix products");
    Gemm(Transpose::kLeft, n, width, d_.rows, 1.0f, {dy, n}, {x, width},
         static_cast<float>(target.beta), {Data(target.gradient), width});
  }

  // Of x [rows, norms * width].
  void NormBack(Norm norm, const NormGradientBuffers& buffers,
                int64_t norms = 1) {
    const int input = call_.norm_inputs[norm];
    at::Tensor gradient;
    if (ctx_->needs_input_grad(input)) {
      gradient = Space(call_.norms[norm].size(0), memory_);
    }
    NormaliseBackward(buffers, d_.rows * norms, call_.Factor(norm), gradient);
    gradients_[input] = std::move(gradient);
  }

  // As Forward::Before.
  const float* Before(Norm norm, const float* x, const float* rstd) {
    if (!call_.norms[norm].defined()) return x;
    NormaliseAgain(x, d_.rows, call_.Factor(norm), rstd, space_.normed);
    return space_.normed;
  }

  // dx = residual + the gradient of Before's x, given that of its result.
  void BeforeBack(Norm norm, const NormGradientBuffers& p) {
    if (call_.norms[norm].defined()) return NormBack(norm, p);
    Add(p.dy, p.residual, d_.rows, d_.hidden, p.dx);
  }

  // The gradient to a branch before its norm.
  const float* AfterBack(Norm norm, const float* d, const float* branch,
                         const float* rstd) {
    if (!call_.norms[norm].defined()) return d;
    NormBack(norm, {d, branch, rstd, nullptr, space_.d_normed});
    return space_.d_normed;
  }

  // x + attention, recomputed if it isn't kept.
  const float* AttentionOutput() {
    if (kept_.y != nullptr) return kept_.y;
    NormaliseAgain(kept_.branch, d_.rows, call_.Factor(kAttentionPostNorm),
                   kept_.branch_rstd, space_.y);
    Add(x_, space_.y, d_.rows, d_.hidden, space_.y);
    return space_.y;
  }

  // Returns the gradient to its input.
  const float* Mlp() {
    const float* const d_down =
        AfterBack(kMlpPostNorm, dy_, kept_.down, kept_.down_rstd);
    ToInput(kDownMatrix, d_down, 0.0f, space_.d_activation);
    GateBackward(call_.options.activation, kept_.gate, kept_.up,
                 d_.rows * d_.inner, space_.d_activation);
    const float* const d_gate = kept_.gate;
    const float* const d_up = kept_.up;
    Weight(kDownMatrix, d_down, space_.d_activation);  // now the activation
    const float* const y = AttentionOutput();
    const float* const n = Before(kMlpNorm, y, kept_.post_rstd);
    Weight(kGateMatrix, d_gate, n);
    Weight(kUpMatrix, d_up, n);
    ToInput(kGateMatrix, d_gate, 0.0f, space_.d_normed);
    ToInput(kUpMatrix, d_up, 1.0f, space_.d_normed);
    BeforeBack(kMlpNorm,
               {space_.d_normed, y, kept_.post_rstd, dy_, space_.d_y});
    return space_.d_y;
  }

  void Attention(const float* d_y) {
    const float* const d_branch =
        AfterBack(kAttentionPostNorm, d_y, kept_.branch, kept_.branch_rstd);
    ToInput(kOutputMatrix, d_branch, 0.0f, space_.d_mixed);
    Weight(kOutputMatrix, d_branch, kept_.mixed);
    QueriesAndKeys();
    const float* const n = Before(kInputNorm, x_, kept_.rstd);
    Weight(kQueryMatrix, space_.dq, n);
    Weight(kKeyMatrix, space_.dk, n);
    Weight(kValueMatrix, space_.dv, n);
    ToInput(kQueryMatrix, space_.dq, 0.0f, space_.d_normed);
    ToInput(kKeyMatrix, space_.dk, 1.0f, space_.d_normed);
    ToInput(kValueMatrix, space_.dv, 1.0f, space_.d_normed);
    at::Tensor dx = at::empty(call_.x.sizes(), memory_.options());
    BeforeBack(kInputNorm, {space_.d_normed, x_, kept_.rstd, d_y, Data(dx)});
    if (ctx_->needs_input_grad(kX)) gradients_[kX] = std::move(dx);
  }

  // From d_mixed to dq, dk and dv.
  void QueriesAndKeys() {
    const int64_t q_norms = d_.qk_norms(d_.shape.heads);
    const int64_t k_norms = d_.qk_norms(d_.shape.kv_heads);
    const float *q = kept_.q, *k = kept_.k;
    if (d_.normed_qk()) {
      NormaliseAgain(kept_.q, d_.rows * q_norms, call_.Factor(kQueryNorm),
                     kept_.q_rstd, space_.q);
      NormaliseAgain(kept_.k, d_.rows * k_norms, call_.Factor(kKeyNorm),
                     kept_.k_rstd, space_.k);
      Rotate(call_, RopeDirection::kForward, d_.q(), space_.q);
      Rotate(call_, RopeDirection::kForward, d_.kv(), space_.k);
      q = space_.q;
      k = space_.k;
    }
    {
      const ProfileScope profile("attention");
      AttentionBackward({d_.shape, d_.rows, call_.options.packing.get()},
                        {q, k, kept_.v, kept_.mixed, space_.d_mixed,
                         kept_.log_sum_exp, space_.dq, space_.dk, space_.dv});
    }
    Rotate(call_, RopeDirection::kBackward, d_.q(), space_.dq);
    Rotate(call_, RopeDirection::kBackward, d_.kv(), space_.dk);
    if (!d_.normed_qk()) return;
    NormBack(kQueryNorm, {space_.dq, kept_.q, kept_.q_rstd, nullptr, space_.dq},
             q_norms);
    NormBack(kKeyNorm, {space_.dk, kept_.k, kept_.k_rstd, nullptr, space_.dk},
             k_norms);
  }

  const Call& call_;
  AutogradContext* const ctx_;
  const FusedDims& d_;
  const FusedKept kept_;
  const at::Tensor memory_;
  const FusedBackwardSpace space_;
  const float* const x_;
  const float* const dy_;
  std::vector<StoredGradients> of_stored_;
  variable_list gradients_;
};

using SharedCall = std::shared_ptr<Call>;

class BlockFunction : public torch::autograd::Function<BlockFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList /*inputs*/,
                            const SharedCall& call) {
    Keep(ctx, call);
    call->kept = Space(FusedKept(call->dims, nullptr).parts.used(), call->x);
    return Forward(call.get()).Run();
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = *KeptOf<SharedCall>(ctx);
    TORCH_CHECK(call.kept.defined(),
                "a fused transformer block's backward can run only once");
    variable_list gradients = Backward(&call, ctx, grads[0].contiguous()).Run();
    call.Release();
    return gradients;
  }
};

QueryKeyNorm QueryKeyNormOf(const AttentionWeights& w,
                            const AttentionShape& shape) {
  TORCH_CHECK(w.q_norm.defined() == w.k_norm.defined(),
              "queries and keys are both normalised, or neither is");
  if (!w.q_norm.defined()) return QueryKeyNorm::kNone;
  return w.q_norm.size(0) == shape.head_dim &&
                 w.k_norm.size(0) == shape.head_dim
             ? QueryKeyNorm::kHead
             : QueryKeyNorm::kRow;
}

}  // namespace

at::Tensor FusedTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options) {
  TORCH_CHECK(options.shape.causal || options.shape.window == 0,
              "a window is for causal attention");
  const AttentionWeights& a = weights.attention;
  const GatedMlpWeights& m = weights.mlp;
  auto call = std::make_shared<Call>();
  call->x = x.contiguous();
  call->norms = {a.norm, a.q_norm,   a.k_norm, weights.attention_post_norm,
                 m.norm, m.post_norm};
  call->options = options;
  std::vector<LinearPart> parts;
  call->stored = AttentionMatrices(a, options, &parts);
  std::move(parts.begin(), parts.end(), call->parts.begin());
  const auto next = [&] { return static_cast<int>(call->stored.size()); };
  const int output = next();
  call->stored.push_back({weights.output, weights.output_bias,
                          weights.output_adapter,
                          options.parameters[kOutputMatrix]});
  call->parts[kOutputMatrix] = {call->stored.back(), output};
  if (m.down.defined()) {
    const int first = next();
    for (StoredLinear& stored : MlpMatrices(m, options.parameters, &parts)) {
      call->stored.push_back(std::move(stored));
    }
    for (LinearPart& part : parts) part.of += first;
    std::move(parts.begin(), parts.end(), call->parts.begin() + kGateMatrix);
  }
  NodeInputs inputs;
  inputs.Add(call->x);
  for (int i = 0; i < kNorms; ++i) {
    call->norm_inputs[i] = inputs.Add(call->norms[i]);
  }
  for (StoredLinear& stored : call->stored) stored.AddTo(&inputs);
  call->inputs = static_cast<int>(inputs.tensors().size());
  call->dims = {x.size(0),
                x.size(1),
                m.down.defined() ? m.down.columns() : 0,
                options.shape,
                a.norm.defined(),
                m.norm.defined(),
                weights.attention_post_norm.defined(),
                m.post_norm.defined(),
                QueryKeyNormOf(a, options.shape)};
  return BlockFunction::apply(inputs.tensors(), call);
}

}  // namespace capstan::kernels
