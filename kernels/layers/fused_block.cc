// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/fused_block.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/profile.h"
#include "kernels/attention/attention.h"
#include "kernels/context/recompute.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/keep.h"
#include "kernels/kept_memory.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/fused_rows.h"
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
  BlockLinears linears;
  TransformerBlockOptions options;
  FusedDims dims;
  int inputs = 0;  // of the node
  at::Tensor kept;
  ExchangedKept exchanged;  // with options.exchange

  // What a norm multiplies by.
  at::Tensor Factor(Norm norm) const {
    return options.norm_plus_one ? norms[norm].detach().to(at::kFloat) + 1.0
                                 : norms[norm];
  }
  ~Call() { Release(); }
  void Release() {
    DropKept(kept);
    DropKept(x);
    kept.reset();
    exchanged = {};
    x.reset();
    norms = {};
    linears = {};
  }
};

at::Tensor Space(int64_t floats) {
  return at::empty({floats}, at::dtype(at::kFloat));
}

at::Tensor LikeX(const Call& call) {
  return at::empty(call.x.sizes(), call.x.options().requires_grad(false));
}

// Whether a layer is no more than a product with a matrix of T in memory.
template <typename T>
bool IsProduct(const LinearPart& part) {
  const at::Tensor& matrix = part.weight.tensor;
  return !part.weight.packed() && !UsesFp8(part.weight) && matrix.is_cpu() &&
         matrix.scalar_type() == StorageType<T>() && !part.bias.defined() &&
         !part.adapter.defined();
}

// y [rows, part.rows()] = the layer of x + beta * y.
template <typename T>
void Project(const LinearPart& part, const T* x, int64_t rows, float beta,
             T* y) {
  const int64_t n = part.rows(), width = part.columns();
  if (!IsProduct<T>(part)) {
    return ForwardInto(part, ViewOf(x, rows, width), ViewOf(y, rows, n), beta);
  }
  const ProfileScope profile("matrix products");
  Gemm(Transpose::kRight, rows, n, width, 1.0f, {x, width},
       {ReadAs<T>(part.weight.tensor), width}, beta, {y, n});
}

// dx [rows, part.columns()] = the gradient to x + beta * dx.
template <typename T>
void ProjectBack(const LinearPart& part, const T* dy, int64_t rows, float beta,
                 T* dx) {
  const int64_t n = part.rows(), width = part.columns();
  if (!IsProduct<T>(part)) {
    return BackwardInto(part, ViewOf(dy, rows, n), ViewOf(dx, rows, width),
                        beta);
  }
  const ProfileScope profile("matrix products");
  Gemm(Transpose::kNone, rows, width, n, 1.0f, {dy, n},
       {ReadAs<T>(part.weight.tensor), width}, beta, {dx, width});
}

// gate and up [rows, inner] of n [rows, hidden].
template <typename T>
void GateAndUp(const BlockLinears& linears, const T* n, int64_t rows, T* gate,
               T* up) {
  const Fp8Unchanged same(n);
  Project(linears[kGateMatrix], n, rows, 0.0f, gate);
  Project(linears[kUpMatrix], n, rows, 0.0f, up);
}

// ApplyRope on x [rows, width].
template <typename T>
void Rotate(const Call& call, RopeDirection direction, int64_t width, T* x) {
  if (!call.options.rope_table.defined()) return;
  at::Tensor view = ViewOf(x, call.dims.rows, width);
  ApplyRope(call.options.rope_table, direction, call.dims.shape.head_dim, view);
}

// Of T: float, Bf16 or Fp16.
template <typename T>
class Forward {
 public:
  explicit Forward(Call* call)
      : call_(*call),
        d_(call->dims),
        memory_(Space(FusedForwardSpace<T>(d_, nullptr).parts.used())),
        kept_(d_, Data(call->kept)),
        space_(d_, Data(memory_)),
        out_(LikeX(*call)),
        x_(ReadAs<T>(call->x)) {}

  at::Tensor Run() {
    Attention();
    if (d_.mlp()) Mlp();
    return out_;
  }

 private:
  void Project(BlockMatrix matrix, const T* from, float beta, T* to) {
    kernels::Project(call_.linears[matrix], from, d_.rows, beta, to);
  }

  // Normalised rows, or x itself.
  const T* Before(Norm norm, const T* x, float* rstd) {
    if (!call_.norms[norm].defined()) return x;
    Normalise(x, d_.rows, call_.Factor(norm), call_.options.eps, space_.normed,
              rstd);
    return space_.normed;
  }

  // Of x [rows, norms * width], to y.
  void NormaliseHeads(Norm norm, int64_t norms, const T* x, float* rstd, T* y) {
    Normalise(x, d_.rows * norms, call_.Factor(norm), call_.options.eps, y,
              rstd);
  }

  void Attention() {
    const T* const n = Before(kInputNorm, x_, kept_.rstd);
    {
      const Fp8Unchanged same(n);
      Project(kQueryMatrix, n, 0.0f, kept_.q);
      Project(kKeyMatrix, n, 0.0f, kept_.k);
      Project(kValueMatrix, n, 0.0f, kept_.v);
    }
    T *q = kept_.q, *k = kept_.k;
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
    const PackedRows* const packing = call_.options.packing.get();
    if (AttentionExchange* const exchange = call_.options.exchange.get()) {
      ExchangedAttentionForward<T>(*exchange, d_.shape, d_.rows, packing, q, k,
                                   kept_.v, kept_.mixed, kept_.log_sum_exp,
                                   &call_.exchanged);
    } else {
      AttentionForward({d_.shape, d_.rows, packing}, q, k, kept_.v, kept_.mixed,
                       kept_.log_sum_exp);
    }
    T* const out = WriteAs<T>(out_);
    if (d_.attention_post_norm) {
      Project(kOutputMatrix, kept_.mixed, 0.0f, kept_.branch);
      Normalise(kept_.branch, d_.rows, call_.Factor(kAttentionPostNorm),
                call_.options.eps, out, kept_.branch_rstd);
      AddRows(x_, out, d_.rows * d_.hidden, out);
      y_ = out;
      return;
    }
    T* const y = d_.mlp() ? kept_.y : out;
    std::memcpy(y, x_, d_.rows * d_.hidden * sizeof(T));
    Project(kOutputMatrix, kept_.mixed, 1.0f, y);
    y_ = y;
  }

  void Mlp() {
    const T* const n = Before(kMlpNorm, y_, kept_.post_rstd);
    T* const gate = d_.recompute_mlp ? space_.gate : kept_.gate;
    T* const up = d_.recompute_mlp ? space_.up : kept_.up;
    GateAndUp(call_.linears, n, d_.rows, gate, up);
    Gate(call_.options.activation, gate, up, d_.rows * d_.inner,
         space_.activation);
    T* const out = WriteAs<T>(out_);
    if (d_.mlp_post_norm) {
      Project(kDownMatrix, space_.activation, 0.0f, kept_.down);
      Normalise(kept_.down, d_.rows, call_.Factor(kMlpPostNorm),
                call_.options.eps, space_.branch, kept_.down_rstd);
      AddRows(y_, space_.branch, d_.rows * d_.hidden, out);
      return;
    }
    if (y_ != out) std::memcpy(out, y_, d_.rows * d_.hidden * sizeof(T));
    Project(kDownMatrix, space_.activation, 1.0f, out);
  }

  Call& call_;
  const FusedDims& d_;
  const at::Tensor memory_;
  const FusedKept<T> kept_;
  const FusedForwardSpace<T> space_;
  const at::Tensor out_;
  const T* const x_;
  const T* y_ = nullptr;  // what the MLP gets
};

// One backward: reads and overwrites what forward kept.
template <typename T>
class Backward {
 public:
  Backward(Call* call, AutogradContext* ctx, const at::Tensor& dy)
      : call_(*call),
        ctx_(ctx),
        d_(call->dims),
        kept_(d_, Data(call->kept)),
        memory_(Space(FusedBackwardSpace<T>(d_, nullptr).parts.used())),
        space_(d_, Data(memory_)),
        x_(ReadAs<T>(call->x)),
        dy_(ReadAs<T>(dy)),
        gradients_(call->inputs + 1) {  // and the call
    of_stored_.reserve(call->linears.stored.size());
    for (const StoredLinear& stored : call->linears.stored) {
      of_stored_.emplace_back(stored, ctx, call->options.sink);
    }
  }

  variable_list Run() {
    const T* const d_y = d_.mlp() ? Mlp() : dy_;
    Attention(d_y);
    for (StoredGradients& of : of_stored_) of.MoveTo(&gradients_);
    return std::move(gradients_);
  }

 private:
  void ToInput(BlockMatrix matrix, const T* dy, float beta, T* dx) {
    ProjectBack(call_.linears[matrix], dy, d_.rows, beta, dx);
  }

  // dy^T x, and the gradients of the bias and the adapter, for dy [rows, n] and
  // x [rows, width].
  void Weight(BlockMatrix matrix, const T* dy, const T* x) {
    const LinearPart& part = call_.linears[matrix];
    StoredGradients& gradients = of_stored_[part.of];
    const int64_t n = part.rows(), width = part.columns();
    if (part.adapter.defined()) {
      gradients.AddAdapter(part, ViewOf(x, d_.rows, width),
                           ViewOf(dy, d_.rows, n));
    }
    if (part.bias.defined()) gradients.AddBias(part, ViewOf(dy, d_.rows, n));
    const StoredGradients::Target target = gradients.MatrixOf(part);
    if (!target.gradient.defined()) return;
    if (UsesFp8(part.weight)) {
      return Fp8WeightGradientInto(target.gradient, ViewOf(dy, d_.rows, n),
                                   ViewOf(x, d_.rows, width), part.weight.fp8,
                                   target.beta);
    }
    const ProfileScope profile("matrix products");
    // In 16 bits, too, a sink's sums are float32.
    WithStorage(target.gradient.scalar_type(), [&](auto storage) {
      Gemm(Transpose::kLeft, n, width, d_.rows, 1.0f, {dy, n}, {x, width},
           static_cast<float>(target.beta),
           {WriteAs<decltype(storage)>(target.gradient), width});
    });
  }

  // Of x [rows, norms * width].
  void NormBack(Norm norm, const NormGradientBuffers<T>& buffers,
                int64_t norms = 1) {
    const int input = call_.norm_inputs[norm];
    at::Tensor gradient;
    if (ctx_->needs_input_grad(input)) {
      gradient = Space(call_.norms[norm].size(0));
    }
    NormaliseBackward(buffers, d_.rows * norms, call_.Factor(norm), gradient,
                      same_bits_);
    if (gradient.defined()) gradients_[input] = gradient.to(StorageType<T>());
  }

  // As Forward::Before.
  const T* Before(Norm norm, const T* x, const float* rstd) {
    if (!call_.norms[norm].defined()) return x;
    NormaliseAgain(x, d_.rows, call_.Factor(norm), rstd, space_.normed);
    return space_.normed;
  }

  // dx = residual + the gradient of Before's x, given that of its result.
  void BeforeBack(Norm norm, const NormGradientBuffers<T>& p) {
    if (call_.norms[norm].defined()) return NormBack(norm, p);
    AddRows(p.dy, p.residual, d_.rows * d_.hidden, p.dx);
  }

  // The gradient to a branch before its norm.
  const T* AfterBack(Norm norm, const T* d, const T* branch,
                     const float* rstd) {
    if (!call_.norms[norm].defined()) return d;
    NormBack(norm, {d, branch, rstd, nullptr, space_.d_normed});
    return space_.d_normed;
  }

  // x + attention, recomputed if it isn't kept.
  const T* AttentionOutput() {
    if (kept_.y != nullptr) return kept_.y;
    NormaliseAgain(kept_.branch, d_.rows, call_.Factor(kAttentionPostNorm),
                   kept_.branch_rstd, space_.y);
    AddRows(x_, space_.y, d_.rows * d_.hidden, space_.y);
    return space_.y;
  }

  // Returns the gradient to its input.
  const T* Mlp() {
    const T* const d_down =
        AfterBack(kMlpPostNorm, dy_, kept_.down, kept_.down_rstd);
    ToInput(kDownMatrix, d_down, 0.0f, space_.d_activation);
    const T* const y = AttentionOutput();
    const T* const n = Before(kMlpNorm, y, kept_.post_rstd);
    T* const d_gate = d_.recompute_mlp ? space_.gate : kept_.gate;
    T* const d_up = d_.recompute_mlp ? space_.up : kept_.up;
    if (d_.recompute_mlp) {
      GateAndUp(call_.linears, n, d_.rows, d_gate, d_up);
    }
    GateBackward(call_.options.activation, d_gate, d_up, d_.rows * d_.inner,
                 space_.d_activation, d_gate, d_up);
    Weight(kDownMatrix, d_down, space_.d_activation);  // now the activation
    {
      const Fp8Unchanged same(n);
      Weight(kGateMatrix, d_gate, n);
      Weight(kUpMatrix, d_up, n);
    }
    ToInput(kGateMatrix, d_gate, 0.0f, space_.d_normed);
    ToInput(kUpMatrix, d_up, 1.0f, space_.d_normed);
    BeforeBack(kMlpNorm,
               {space_.d_normed, y, kept_.post_rstd, dy_, space_.d_y});
    return space_.d_y;
  }

  void Attention(const T* d_y) {
    const T* const d_branch =
        AfterBack(kAttentionPostNorm, d_y, kept_.branch, kept_.branch_rstd);
    ToInput(kOutputMatrix, d_branch, 0.0f, space_.d_mixed);
    Weight(kOutputMatrix, d_branch, kept_.mixed);
    QueriesAndKeys();
    const T* const n = Before(kInputNorm, x_, kept_.rstd);
    {
      const Fp8Unchanged same(n);
      Weight(kQueryMatrix, space_.dq, n);
      Weight(kKeyMatrix, space_.dk, n);
      Weight(kValueMatrix, space_.dv, n);
    }
    ToInput(kQueryMatrix, space_.dq, 0.0f, space_.d_normed);
    ToInput(kKeyMatrix, space_.dk, 1.0f, space_.d_normed);
    ToInput(kValueMatrix, space_.dv, 1.0f, space_.d_normed);
    at::Tensor dx = LikeX(call_);
    BeforeBack(kInputNorm,
               {space_.d_normed, x_, kept_.rstd, d_y, WriteAs<T>(dx)});
    if (ctx_->needs_input_grad(kX)) gradients_[kX] = std::move(dx);
  }

  // From d_mixed to dq, dk and dv.
  void QueriesAndKeys() {
    const int64_t q_norms = d_.qk_norms(d_.shape.heads);
    const int64_t k_norms = d_.qk_norms(d_.shape.kv_heads);
    const T *q = kept_.q, *k = kept_.k;
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
    const PackedRows* const packing = call_.options.packing.get();
    const AttentionBackwardBuffers<T> buffers = {q,
                                                 k,
                                                 kept_.v,
                                                 kept_.mixed,
                                                 space_.d_mixed,
                                                 kept_.log_sum_exp,
                                                 space_.dq,
                                                 space_.dk,
                                                 space_.dv};
    if (AttentionExchange* const exchange = call_.options.exchange.get()) {
      ExchangedAttentionBackward<T>(*exchange, d_.shape, d_.rows, packing,
                                    buffers, call_.exchanged);
    } else {
      AttentionBackward<T>({d_.shape, d_.rows, packing}, buffers);
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
  const FusedKept<T> kept_;
  const at::Tensor memory_;
  const FusedBackwardSpace<T> space_;
  const T* const x_;
  const T* const dy_;
  // Of norms' gradients, with any number of threads: as the plain block's, but
  // for float32, in which a pass more would cost more.
  const bool same_bits_ = !std::is_same_v<T, float> ||
                          at::globalContext().deterministicAlgorithms();
  std::vector<StoredGradients> of_stored_;
  variable_list gradients_;
};

using SharedCall = std::shared_ptr<Call>;

class BlockFunction : public torch::autograd::Function<BlockFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList /*inputs*/,
                            const SharedCall& call) {
    Keep(ctx, call);
    at::Tensor out;
    WithStorage(call->x.scalar_type(), [&](auto storage) {
      using T = decltype(storage);
      call->kept = Space(FusedKept<T>(call->dims, nullptr).parts.used());
      out = Forward<T>(call.get()).Run();
    });
    TakeKept(call->kept);
    TakeKept(call->x);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = *KeptOf<SharedCall>(ctx);
    TORCH_CHECK(call.kept.defined(),
                "a fused transformer block's backward can run only once");
    CheckKept(call.kept);
    CheckKept(call.x);
    const at::Tensor dy = grads[0].contiguous();
    variable_list gradients;
    WithStorage(dy.scalar_type(), [&](auto storage) {
      gradients = Backward<decltype(storage)>(&call, ctx, dy).Run();
    });
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
  call->linears = {weights, options};
  NodeInputs inputs;
  inputs.Add(call->x);
  for (int i = 0; i < kNorms; ++i) {
    call->norm_inputs[i] = inputs.Add(call->norms[i]);
  }
  for (StoredLinear& stored : call->linears.stored) stored.AddTo(&inputs);
  call->inputs = static_cast<int>(inputs.tensors().size());
  call->dims = {x.size(0),
                x.size(1),
                m.down.defined() ? m.down.columns() : 0,
                options.shape,
                a.norm.defined(),
                m.norm.defined(),
                weights.attention_post_norm.defined(),
                m.post_norm.defined(),
                QueryKeyNormOf(a, options.shape),
                RecomputesMlp()};
  return BlockFunction::apply(inputs.tensors(), call);
}

}  // namespace capstan::kernels
