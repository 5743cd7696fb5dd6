// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/transformer_block.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/attention/attention.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/keep.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/linear.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A block's memory layout follows from its sizes: one allocation each for what
// is kept and for the temporaries of forward and of backward, the same in each
// layer and step.

// The sizes of a block, in rows and floats per row.
struct Dims {
  int64_t rows, hidden, inner;
  AttentionShape shape;
  int64_t q = shape.heads * shape.head_dim;
  int64_t kv = shape.kv_heads * shape.head_dim;
};

// What forward leaves for backward. With a null base it only counts.
struct Kept {
  Kept(const Dims& d, float* base) : parts(base) {
    q = parts.Take(d.rows * d.q);
    k = parts.Take(d.rows * d.kv);
    v = parts.Take(d.rows * d.kv);
    mixed = parts.Take(d.rows * d.q);
    log_sum_exp = parts.Take(d.rows * d.shape.heads);
    y = parts.Take(d.rows * d.hidden);
    rstd = parts.Take(d.rows);
    post_rstd = parts.Take(d.rows);
    gate = parts.Take(d.rows * d.inner);
    up = parts.Take(d.rows * d.inner);
  }
  MemoryParts parts;
  float *q, *k, *v, *mixed, *log_sum_exp, *y, *rstd, *post_rstd, *gate, *up;
};

// Forward's temporaries.
struct ForwardSpace {
  ForwardSpace(const Dims& d, float* base) : parts(base) {
    normed = parts.Take(d.rows * d.hidden);
    activation = parts.Take(d.rows * d.inner);
  }
  MemoryParts parts;
  float *normed, *activation;
};

// Backward's.
struct BackwardSpace {
  BackwardSpace(const Dims& d, float* base) : parts(base) {
    normed = parts.Take(d.rows * d.hidden);
    d_normed = parts.Take(d.rows * d.hidden);
    d_y = parts.Take(d.rows * d.hidden);
    // The same memory: first d_activation in the MLP, then these in attention.
    MemoryParts attention(base == nullptr ? nullptr : base + parts.used());
    d_mixed = attention.Take(d.rows * d.q);
    dq = attention.Take(d.rows * d.q);
    dk = attention.Take(d.rows * d.kv);
    dv = attention.Take(d.rows * d.kv);
    d_activation = parts.Take(std::max(d.rows * d.inner, attention.used()));
  }
  MemoryParts parts;
  float *normed, *d_normed, *d_y, *d_mixed, *dq, *dk, *dv, *d_activation;
};

// The inputs of the node.
enum Input {
  kX,
  kInputNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kPostNorm,
  kGate,
  kUp,
  kDown,
  kInputs
};

// The matrices' indices in TransformerBlockOptions::parameters.
int PlaceOf(int input) {
  return input < kPostNorm ? input - kQuery : input - kQuery - 1;
}

at::Tensor Space(int64_t floats, const at::Tensor& like) {
  return at::empty({floats}, like.options().requires_grad(false));
}

template <typename Body>
void ForRows(int64_t rows, int64_t width, const Body& body) {
  at::parallel_for(0, rows, RowGrain(width), body);
}

// out [rows, n] = x W^T + beta * out, for W [n, width].
void Project(const float* x, int64_t rows, int64_t width, const at::Tensor& w,
             float beta, float* out) {
  const ProfileScope profile("matrix products");
  const int64_t n = w.size(0);
  Gemm(Transpose::kRight, rows, n, width, 1.0f, {x, width},
       {ConstData(w), width}, beta, {out, n});
}

// dx [rows, width] = dy W + beta * dx, for W [n, width].
void ProjectBack(const float* dy, int64_t rows, const at::Tensor& w, float beta,
                 float* dx) {
  const ProfileScope profile("matrix products");
  const int64_t n = w.size(0), width = w.size(1);
  Gemm(Transpose::kNone, rows, width, n, 1.0f, {dy, n}, {ConstData(w), width},
       beta, {dx, width});
}

// RmsNorm of x [rows, hidden]; rstd: [rows].
void Normalise(const Dims& d, const float* x, const at::Tensor& weight,
               double eps, float* y, float* rstd) {
  const ProfileScope profile("rms_norm");
  const float* w = ConstData(weight);
  ForRows(d.rows, d.hidden, [&](int64_t begin, int64_t end) {
    Simd().fp32.rms_norm(x + begin * d.hidden, w, static_cast<float>(eps),
                         end - begin, d.hidden, y + begin * d.hidden,
                         rstd + begin);
  });
}

// The same y, from a given rstd.
void NormaliseAgain(const Dims& d, const float* x, const at::Tensor& weight,
                    const float* rstd, float* y) {
  const ProfileScope profile("rms_norm");
  const float* w = ConstData(weight);
  ForRows(d.rows, d.hidden, [&](int64_t begin, int64_t end) {
    Simd().fp32.rms_norm_again(x + begin * d.hidden, w, rstd + begin,
                               end - begin, d.hidden, y + begin * d.hidden);
  });
}

// dx = residual + the gradient to x; writes `weight_gradient` [hidden] if
// defined.
void NormaliseBackward(const Dims& d, const float* dy, const float* x,
                       const at::Tensor& weight, const float* rstd,
                       const float* residual, float* dx,
                       const at::Tensor& weight_gradient) {
  const ProfileScope profile("rms_norm");
  // One sum per chunk of rows, so that threads don't share one.
  const int64_t pieces = std::max<int64_t>(
      1, std::min<int64_t>(at::get_num_threads(), d.rows / RowGrain(d.hidden)));
  const bool wanted = weight_gradient.defined();
  at::Tensor sums;
  if (wanted) {
    sums = pieces == 1 ? weight_gradient
                       : at::empty({pieces * d.hidden}, weight.options());
    sums.zero_();
  }
  float* const sum = wanted ? Data(sums) : nullptr;
  const float* w = ConstData(weight);
  at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t begin = d.rows * piece / pieces;
      const int64_t end = d.rows * (piece + 1) / pieces;
      const int64_t at = begin * d.hidden;
      Simd().fp32.rms_norm_backward(
          dy + at, x + at, w, rstd + begin, residual + at, end - begin,
          d.hidden, dx + at, wanted ? sum + piece * d.hidden : nullptr);
    }
  });
  if (wanted && pieces > 1) {
    at::sum_out(const_cast<at::Tensor&>(weight_gradient),
                sums.view({pieces, d.hidden}), {0});
  }
}

// [rows, width] over existing memory that outlives it.
at::Tensor View(const float* data, int64_t rows, int64_t width) {
  return at::from_blob(const_cast<float*>(data), {rows, width}, at::kFloat);
}

// ApplyRope on x [rows, width].
void Rotate(const Dims& d, const at::Tensor& table, RopeDirection direction,
            int64_t width, float* x) {
  at::Tensor view = View(x, d.rows, width);
  ApplyRope(table, direction, view);
}

using Adapters = std::array<Adapter, kBlockMatrices>;

// A forward that waits for its backward.
struct Call {
  std::array<at::Tensor, kInputs> inputs;
  Adapters adapters;  // as TransformerBlockOptions::parameters
  TransformerBlockOptions options;
  at::Tensor kept;

  Dims dims() const {
    return {inputs[kX].size(0), inputs[kX].size(1), inputs[kGate].size(0),
            options.shape};
  }
};

at::Tensor Forward(Call& call) {
  const auto& in = call.inputs;
  const TransformerBlockOptions& options = call.options;
  const Dims d = call.dims();
  call.kept = Space(Kept(d, nullptr).parts.used(), in[kX]);
  const at::Tensor memory =
      Space(ForwardSpace(d, nullptr).parts.used(), in[kX]);
  const Kept kept(d, Data(call.kept));
  const ForwardSpace space(d, Data(memory));
  at::Tensor out = at::empty(in[kX].sizes(), call.kept.options());
  const float* x = ConstData(in[kX]);
  const int64_t hidden_bytes = d.rows * d.hidden * sizeof(float);
  const auto project = [&](Input input, const float* from, int64_t width,
                           float beta, float* to) {
    Project(from, d.rows, width, in[input], beta, to);
    const Adapter& adapter = call.adapters[PlaceOf(input)];
    if (!adapter.defined()) return;
    AddAdapter(adapter, View(from, d.rows, width),
               View(to, d.rows, in[input].size(0)));
  };

  Normalise(d, x, in[kInputNorm], options.eps, space.normed, kept.rstd);
  project(kQuery, space.normed, d.hidden, 0.0f, kept.q);
  project(kKey, space.normed, d.hidden, 0.0f, kept.k);
  project(kValue, space.normed, d.hidden, 0.0f, kept.v);
  Rotate(d, options.rope_table, RopeDirection::kForward, d.q, kept.q);
  Rotate(d, options.rope_table, RopeDirection::kForward, d.kv, kept.k);
  {
    const ProfileScope profile("attention");
    AttentionForward({d.shape, d.rows, options.packing.get()}, kept.q, kept.k,
                     kept.v, kept.mixed, kept.log_sum_exp);
  }
  std::memcpy(kept.y, x, hidden_bytes);
  project(kOutput, kept.mixed, d.q, 1.0f, kept.y);

  Normalise(d, kept.y, in[kPostNorm], options.eps, space.normed,
            kept.post_rstd);
  project(kGate, space.normed, d.hidden, 0.0f, kept.gate);
  project(kUp, space.normed, d.hidden, 0.0f, kept.up);
  {
    const ProfileScope profile("swiglu");
    ForRows(d.rows * d.inner, 1, [&](int64_t i, int64_t end) {
      Simd().fp32.swiglu(kept.gate + i, kept.up + i, end - i,
                         space.activation + i);
    });
  }
  std::memcpy(Data(out), kept.y, hidden_bytes);
  project(kDown, space.activation, d.inner, 1.0f, Data(out));
  return out;
}

// One backward: reads and overwrites what forward kept.
class Backward {
 public:
  Backward(Call* call, const std::array<bool, kInputs>& wanted,
           const at::Tensor& dy)
      : in_(call->inputs),
        adapters_(call->adapters),
        options_(call->options),
        wanted_(wanted),
        d_(call->dims()),
        kept_(d_, Data(call->kept)),
        memory_(Space(BackwardSpace(d_, nullptr).parts.used(), dy)),
        space_(d_, Data(memory_)),
        dy_(ConstData(dy)),
        gradients_(kInputs) {}

  variable_list Run() {
    Mlp();
    Attention();
    for (variable_list& of_adapter : of_adapters_) {
      for (at::Tensor& t : of_adapter) gradients_.push_back(std::move(t));
    }
    return std::move(gradients_);
  }

 private:
  // dx [rows, width] = dy W + beta * dx, plus the adapter.
  void ToInput(Input input, const float* dy, float beta, float* dx) {
    ProjectBack(dy, d_.rows, in_[input], beta, dx);
    const Adapter& adapter = adapters_[PlaceOf(input)];
    if (!adapter.defined()) return;
    AdapterBackward(adapter, View(dy, d_.rows, in_[input].size(0)))
        .AddTo(View(dx, d_.rows, in_[input].size(1)));
  }

  // dy^T x, for dy [rows, n] and x [rows, width].
  void Weight(Input input, const float* dy, const float* x) {
    const Adapter& adapter = adapters_[PlaceOf(input)];
    if (adapter.defined()) {
      AdapterBackward(adapter, View(dy, d_.rows, in_[input].size(0)))
          .AppendWeights(View(x, d_.rows, in_[input].size(1)),
                         &of_adapters_[PlaceOf(input)]);
    }
    if (!wanted_[input]) return;
    const at::Tensor& weight = in_[input];
    const WeightPlace to = {options_.sink, options_.parameters[PlaceOf(input)]};
    GradientSink::Place place = to.Open();
    if (!place.gradient.defined()) {
      place.gradient =
          at::empty(weight.sizes(), weight.options().requires_grad(false));
    }
    const ProfileScope profile("matrix products");
    const int64_t n = weight.size(0), width = weight.size(1);
    Gemm(Transpose::kLeft, n, width, d_.rows, 1.0f, {dy, n}, {x, width},
         place.add ? 1.0f : 0.0f, {Data(place.gradient), width});
    gradients_[input] = std::move(place.gradient);
  }

  at::Tensor NormGradient(Input input) {
    return wanted_[input] ? Space(d_.hidden, memory_) : at::Tensor();
  }

  void Mlp() {
    ToInput(kDown, dy_, 0.0f, space_.d_activation);
    {
      const ProfileScope profile("swiglu");
      ForRows(d_.rows * d_.inner, 1, [&](int64_t i, int64_t end) {
        Simd().fp32.swiglu_backward(kept_.gate + i, kept_.up + i, end - i,
                                    space_.d_activation + i, kept_.gate + i,
                                    kept_.up + i);
      });
    }
    const float* const d_gate = kept_.gate;
    const float* const d_up = kept_.up;
    Weight(kDown, dy_, space_.d_activation);  // by now the activation
    NormaliseAgain(d_, kept_.y, in_[kPostNorm], kept_.post_rstd, space_.normed);
    Weight(kGate, d_gate, space_.normed);
    Weight(kUp, d_up, space_.normed);
    ToInput(kGate, d_gate, 0.0f, space_.d_normed);
    ToInput(kUp, d_up, 1.0f, space_.d_normed);
    gradients_[kPostNorm] = NormGradient(kPostNorm);
    NormaliseBackward(d_, space_.d_normed, kept_.y, in_[kPostNorm],
                      kept_.post_rstd, dy_, space_.d_y, gradients_[kPostNorm]);
  }

  void Attention() {
    ToInput(kOutput, space_.d_y, 0.0f, space_.d_mixed);
    Weight(kOutput, space_.d_y, kept_.mixed);
    {
      const ProfileScope profile("attention");
      AttentionBackward({d_.shape, d_.rows, options_.packing.get()},
                        {kept_.q, kept_.k, kept_.v, kept_.mixed, space_.d_mixed,
                         kept_.log_sum_exp, space_.dq, space_.dk, space_.dv});
    }
    Rotate(d_, options_.rope_table, RopeDirection::kBackward, d_.q, space_.dq);
    Rotate(d_, options_.rope_table, RopeDirection::kBackward, d_.kv, space_.dk);
    const float* const x = ConstData(in_[kX]);
    NormaliseAgain(d_, x, in_[kInputNorm], kept_.rstd, space_.normed);
    Weight(kQuery, space_.dq, space_.normed);
    Weight(kKey, space_.dk, space_.normed);
    Weight(kValue, space_.dv, space_.normed);
    ToInput(kQuery, space_.dq, 0.0f, space_.d_normed);
    ToInput(kKey, space_.dk, 1.0f, space_.d_normed);
    ToInput(kValue, space_.dv, 1.0f, space_.d_normed);
    gradients_[kInputNorm] = NormGradient(kInputNorm);
    gradients_[kX] = at::empty(in_[kX].sizes(), memory_.options());
    NormaliseBackward(d_, space_.d_normed, x, in_[kInputNorm], kept_.rstd,
                      space_.d_y, Data(gradients_[kX]), gradients_[kInputNorm]);
  }

  const std::array<at::Tensor, kInputs>& in_;
  const Adapters& adapters_;
  const TransformerBlockOptions& options_;
  const std::array<bool, kInputs>& wanted_;
  const Dims d_;
  const Kept kept_;
  const at::Tensor memory_;
  const BackwardSpace space_;
  const float* const dy_;
  variable_list gradients_;
  std::array<variable_list, kBlockMatrices> of_adapters_;
};

class BlockFunction : public torch::autograd::Function<BlockFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs,
                            at::TensorList adapter_tensors,
                            const Adapters& adapters,
                            const TransformerBlockOptions& options) {
    Call call = {{}, adapters, options, {}};
    std::copy(inputs.begin(), inputs.end(), call.inputs.begin());
    return Forward(Keep(ctx, std::move(call)));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = KeptOf<Call>(ctx);
    TORCH_CHECK(call.kept.defined(),
                "a fused transformer block's backward can run only once");
    std::array<bool, kInputs> wanted;
    for (int i = 0; i < kInputs; ++i) wanted[i] = ctx->needs_input_grad(i);
    variable_list gradients =
        Backward(&call, wanted, grads[0].contiguous()).Run();
    if (!wanted[kX]) gradients[kX].reset();
    gradients.resize(gradients.size() + 2);  // adapters, options
    call.kept.reset();
    call.inputs = {};
    call.adapters = {};
    return gradients;
  }
};

OperatorMemory PlanPlainBlock(const TransformerBlockShape& s) {
  MemoryLedger forward;
  PlanAttentionInput(s, &forward);
  PlanAttention(s.attention, s.rows, s.dtype, s.packed, &forward);
  PlanLinearAdd(s, &forward);
  PlanGatedMlp(s, &forward);
  // Attention kept copies of k and v.
  if (s.attention.heads != s.attention.kv_heads) forward.Free(2 * s.kv());
  const int64_t kept = forward.live();
  MemoryLedger backward(kept);
  PlanGatedMlpBackward(s, &backward);
  PlanLinearAddBackward(s, &backward);
  PlanAttentionBackward(s.attention, s.rows, s.dtype, s.packed, &backward);
  PlanAttentionInputBackward(s, &backward);
  return {kept, forward.peak() - kept, backward.peak() - kept};
}

OperatorMemory PlanFusedBlock(const TransformerBlockShape& s) {
  const Dims d = {s.rows, s.hidden, s.intermediate, s.attention};
  OperatorMemory memory;
  memory.kept = Kept(d, nullptr).parts.used() * kFloatBytes + s.x();
  const int64_t space = BackwardSpace(d, nullptr).parts.used() * kFloatBytes;
  memory.backward = space + s.x() + 2 * s.norm_gradient();
  // The adapters' gradients come together; the one to x comes last.
  int64_t gradients = 0, adapters = 0;
  for (const BlockMatrix matrix :
       {kDownMatrix, kGateMatrix, kUpMatrix, kOutputMatrix, kQueryMatrix,
        kKeyMatrix, kValueMatrix}) {
    const LinearMemory linear = s.Linear(matrix);
    adapters = std::max(adapters, linear.forward);
    if (s.trained) continue;
    memory.backward =
        std::max(memory.backward, space + gradients + linear.backward);
    gradients += linear.gradients;
  }
  memory.backward = std::max(memory.backward, space + gradients + s.x());
  memory.forward =
      ForwardSpace(d, nullptr).parts.used() * kFloatBytes + adapters;
  return memory;
}

}  // namespace

at::Tensor PlainTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options) {
  const QueryKeyValue qkv =
      AttentionInput(x, weights.attention, options.eps, options.rope_table);
  const at::Tensor mixed =
      Attention(qkv.q, qkv.k, qkv.v, options.shape, options.packing);
  const at::Tensor y =
      LinearAdd(mixed, weights.output, x, weights.output_adapter);
  return GatedMlp(y, weights.mlp, options.eps);
}

at::Tensor CachedTransformerBlock(const at::Tensor& x,
                                  const TransformerBlockWeights& weights,
                                  const TransformerBlockOptions& options,
                                  const AppendKeyValue& append,
                                  const at::Tensor& first) {
  const QueryKeyValue qkv =
      AttentionInput(x, weights.attention, options.eps, options.rope_table);
  const CachedKeyValue all = append(qkv.k, qkv.v);
  const at::Tensor mixed =
      CachedAttention(qkv.q, all.k, all.v, options.shape, first);
  const at::Tensor y =
      LinearAdd(mixed, weights.output, x, weights.output_adapter);
  return GatedMlp(y, weights.mlp, options.eps);
}

bool CanFuseTransformerBlock(const at::Tensor& x) { return FastPath(x); }

at::Tensor FusedTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options) {
  const AttentionWeights& a = weights.attention;
  const GatedMlpWeights& m = weights.mlp;
  const Adapters adapters = {
      a.adapters[0], a.adapters[1], a.adapters[2], weights.output_adapter,
      m.adapters[0], m.adapters[1], m.adapters[2]};
  const std::array<at::Tensor, kInputs> inputs = {
      x.contiguous(),        a.norm, a.q.tensor,    a.k.tensor,  a.v.tensor,
      weights.output.tensor, m.norm, m.gate.tensor, m.up.tensor, m.down.tensor};
  return BlockFunction::apply(at::TensorList(inputs),
                              at::TensorList(AdapterTensors(adapters)),
                              adapters, options);
}

LinearMemory TransformerBlockShape::Linear(BlockMatrix matrix) const {
  const std::pair<int64_t, int64_t> out_in[kBlockMatrices] = {
      {query_width(), hidden}, {key_width(), hidden},  {key_width(), hidden},
      {hidden, query_width()}, {intermediate, hidden}, {intermediate, hidden},
      {hidden, intermediate}};
  const auto [out, in] = out_in[matrix];
  return PlanLinear(rows, in, out, dtype, trained, adapters[matrix]);
}

OperatorMemory PlanTransformerBlock(const TransformerBlockShape& shape) {
  return shape.dtype == c10::ScalarType::Float ? PlanFusedBlock(shape)
                                               : PlanPlainBlock(shape);
}

}  // namespace capstan::kernels
