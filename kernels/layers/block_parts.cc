// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/block_parts.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>
#include <vector>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"
#include "kernels/keep.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"

namespace capstan::kernels {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void ComposedRope(const at::Tensor& table, RopeDirection direction,
                  at::Tensor& x) {
  const int64_t positions = table.size(0), head_dim = table.size(1);
  const int64_t half = head_dim / 2;
  at::Tensor heads = x.view({x.size(0) / positions, positions, -1, head_dim});
  const at::Tensor c = table.narrow(1, 0, half).unsqueeze(1);
  at::Tensor s = table.narrow(1, half, half).unsqueeze(1);
  if (direction == RopeDirection::kBackward) s = -s;
  const at::Tensor a = heads.narrow(3, 0, half).to(at::kFloat);
  const at::Tensor b = heads.narrow(3, half, half).to(at::kFloat);
  heads.copy_(at::cat({a * c - b * s, b * c + a * s}, 3));
}

class AttentionInputFunction
    : public torch::autograd::Function<AttentionInputFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const at::Tensor& norm, const at::Tensor& wq,
                               const at::Tensor& wk, const at::Tensor& wv,
                               const at::Tensor& rope_table,
                               at::TensorList adapter_tensors, double eps,
                               c10::ArrayRef<Adapter> adapters) {
    const RmsNormResult n = RmsNormForward(x, norm, eps);
    variable_list out;
    for (const at::Tensor& weight : {wq, wk, wv}) {
      out.push_back(MatMul(n.y, weight.t()));
      AddAdapter(adapters[out.size() - 1], n.y, out.back());
    }
    ApplyRope(rope_table, RopeDirection::kForward, out[0]);
    ApplyRope(rope_table, RopeDirection::kForward, out[1]);
    ctx->save_for_backward({x, norm, wq, wk, wv, n.rstd, rope_table});
    Keep(ctx, adapters.vec());
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm = saved[1], &rstd = saved[5];
    const at::Tensor& rope_table = saved[6];
    const auto& adapters = KeptOf<std::vector<Adapter>>(ctx);
    const at::Tensor n = RmsNormAgain(x, norm, rstd);
    at::Tensor dn;
    variable_list out(6);
    for (int i = 0; i < 3; ++i) {  // q, k, v
      const at::Tensor& weight = saved[2 + i];
      // Newly made by attention, and used only here.
      at::Tensor dy = grads[i].contiguous();
      if (i < 2) ApplyRope(rope_table, RopeDirection::kBackward, dy);
      if (ctx->needs_input_grad(2 + i)) {
        out[2 + i] = MatMul(dy.t(), n);
      }
      if (i == 0) {
        dn = MatMul(dy, weight);
      } else {
        MatMulInto(dn, dy, weight, /*beta=*/1.0);
      }
      const AdapterBackward adapter(adapters[i], dy);
      adapter.AddTo(dn);
      adapter.AppendWeights(n, &out);
    }
    RmsNormGradients gradients = RmsNormBackward(
        dn, x, norm, rstd, at::Tensor(), ctx->needs_input_grad(1));
    out[0] = gradients.x;
    out[1] = gradients.weight;
    out.resize(out.size() + 2);  // eps, adapters
    return out;
  }
};

class LinearAddFunction : public torch::autograd::Function<LinearAddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& residual,
                            at::TensorList adapter_tensors,
                            const Adapter& adapter) {
    ctx->save_for_backward({x, weight});
    Keep(ctx, adapter);
    at::Tensor out = residual.clone();
    MatMulInto(out, x, weight.t(), /*beta=*/1.0);
    AddAdapter(adapter, x, out);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = grads[0];
    const AdapterBackward adapter(KeptOf<Adapter>(ctx), dy);
    variable_list out(3);
    if (ctx->needs_input_grad(0)) {
      out[0] = MatMul(dy, weight);
      adapter.AddTo(out[0]);
    }
    if (ctx->needs_input_grad(1)) out[1] = MatMul(dy.t(), x);
    out[2] = dy;
    adapter.AppendWeights(x, &out);
    out.emplace_back();  // the adapter
    return out;
  }
};

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& norm, const at::Tensor& w_gate,
                            const at::Tensor& w_up, const at::Tensor& w_down,
                            at::TensorList adapter_tensors, double eps,
                            c10::ArrayRef<Adapter> adapters) {
    const RmsNormResult n = RmsNormForward(x, norm, eps);
    const at::Tensor gate = MatMul(n.y, w_gate.t());
    AddAdapter(adapters[0], n.y, gate);
    const at::Tensor up = MatMul(n.y, w_up.t());
    AddAdapter(adapters[1], n.y, up);
    ctx->save_for_backward({x, norm, w_gate, w_up, w_down, n.rstd, gate, up});
    Keep(ctx, adapters.vec());
    const at::Tensor activation = SwiGlu(gate, up);
    at::Tensor out = x.clone();
    MatMulInto(out, activation, w_down.t(), /*beta=*/1.0);
    AddAdapter(adapters[2], activation, out);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm = saved[1], &w_gate = saved[2];
    const at::Tensor &w_up = saved[3], &w_down = saved[4], &rstd = saved[5];
    const at::Tensor &gate = saved[6], &up = saved[7];
    const at::Tensor dy = grads[0].contiguous();
    const auto& adapters = KeptOf<std::vector<Adapter>>(ctx);
    variable_list out(5), of_down;
    const AdapterBackward down(adapters[2], dy);
    at::Tensor d_activation = MatMul(dy, w_down);
    down.AddTo(d_activation);
    SwiGluGradients d = SwiGluBackward(gate, up, std::move(d_activation));
    if (ctx->needs_input_grad(4)) {
      out[4] = MatMul(dy.t(), d.activation);
    }
    down.AppendWeights(d.activation, &of_down);
    d.activation.reset();
    const at::Tensor n = RmsNormAgain(x, norm, rstd);
    if (ctx->needs_input_grad(2)) out[2] = MatMul(d.gate.t(), n);
    if (ctx->needs_input_grad(3)) out[3] = MatMul(d.up.t(), n);
    at::Tensor dn = MatMul(d.gate, w_gate);
    MatMulInto(dn, d.up, w_up, /*beta=*/1.0);
    for (int i = 0; i < 2; ++i) {
      const AdapterBackward adapter(adapters[i], i == 0 ? d.gate : d.up);
      adapter.AddTo(dn);
      adapter.AppendWeights(n, &out);
    }
    out.insert(out.end(), of_down.begin(), of_down.end());
    RmsNormGradients gradients =
        RmsNormBackward(dn, x, norm, rstd, dy, ctx->needs_input_grad(1));
    out[0] = gradients.x;
    out[1] = gradients.weight;
    out.resize(out.size() + 2);  // eps, adapters
    return out;
  }
};

}  // namespace

at::Tensor RopeTable(int64_t positions, int64_t head_dim, double theta) {
  const int64_t half = head_dim / 2;
  at::Tensor table = at::empty({positions, head_dim}, at::kFloat);
  float* row = table.mutable_data_ptr<float>();
  for (int64_t p = 0; p < positions; ++p, row += head_dim) {
    for (int64_t i = 0; i < half; ++i) {
      // Frequency and angle are rounded to float32 to match transformers'
      // modeling_rope_utils.py.
      const float inverse = static_cast<float>(
          1.0 / std::pow(theta, static_cast<double>(2 * i) / head_dim));
      const float angle = static_cast<float>(p) * inverse;
      row[i] = std::cos(angle);
      row[half + i] = std::sin(angle);
    }
  }
  return table;
}

at::Tensor RopeTable(int64_t positions,
                     c10::ArrayRef<double> inverse_frequencies, double factor) {
  const auto half = static_cast<int64_t>(inverse_frequencies.size());
  at::Tensor table = at::empty({positions, 2 * half}, at::kFloat);
  float* row = table.mutable_data_ptr<float>();
  const auto scale = static_cast<float>(factor);
  for (int64_t p = 0; p < positions; ++p, row += 2 * half) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle =
          static_cast<float>(p) * static_cast<float>(inverse_frequencies[i]);
      row[i] = std::cos(angle) * scale;
      row[half + i] = std::sin(angle) * scale;
    }
  }
  return table;
}

void ApplyRope(const at::Tensor& table, RopeDirection direction,
               at::Tensor& x) {
  const ProfileScope profile("rope");
  const float sign = direction == RopeDirection::kForward ? 1.0f : -1.0f;
  if (const auto* cuda = cuda::For(x)) return cuda::Rope(*cuda, table, sign, x);
  if (!HasRowKernels(x)) return ComposedRope(table, direction, x);
  const int64_t positions = table.size(0), head_dim = table.size(1);
  const int64_t half = head_dim / 2, width = x.size(1);
  const float* angles = table.const_data_ptr<float>();
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    T* xp = WriteAs<T>(x);
    at::parallel_for(
        0, x.size(0), RowGrain(width), [&](int64_t r, int64_t end) {
          for (; r < end; ++r) {
            const float* row = angles + r % positions * head_dim;
            Simd().rows<T>().rotate(row, row + half, sign, width / head_dim,
                                    half, xp + r * width);
          }
        });
  });
}

void PlanAttentionInput(const TransformerBlockShape& s, MemoryLedger* ledger) {
  PlanRmsNorm(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(s.q() + 2 * s.kv());
  ledger->Pass(s.Linear(kValueMatrix).forward);
  ledger->Free(s.x());  // n
}

void PlanAttentionInputBackward(const TransformerBlockShape& s,
                                MemoryLedger* ledger) {
  ledger->Take(s.x());  // n, again
  const LinearMemory value = s.Linear(kValueMatrix);
  ledger->Take(s.x() + s.Linear(kQueryMatrix).gradients +
               s.Linear(kKeyMatrix).gradients + value.gradients);
  ledger->Pass(value.backward);
  PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
}

QueryKeyValue AttentionInput(const at::Tensor& x,
                             const AttentionWeights& weights, double eps,
                             const at::Tensor& rope_table) {
  const variable_list out = AttentionInputFunction::apply(
      x, weights.norm, weights.q.tensor, weights.k.tensor, weights.v.tensor,
      rope_table, at::TensorList(AdapterTensors(weights.adapters)), eps,
      c10::ArrayRef<Adapter>(weights.adapters));
  return {out[0], out[1], out[2]};
}

at::Tensor LinearAdd(const at::Tensor& x, const Weight& weight,
                     const at::Tensor& residual, const Adapter& adapter) {
  return LinearAddFunction::apply(x, weight.tensor, residual,
                                  at::TensorList(AdapterTensors(adapter)),
                                  adapter);
}

void PlanLinearAdd(const TransformerBlockShape& s, MemoryLedger* ledger) {
  ledger->Take(s.x());
  ledger->Pass(s.Linear(kOutputMatrix).forward);
}

void PlanLinearAddBackward(const TransformerBlockShape& s,
                           MemoryLedger* ledger) {
  const LinearMemory output = s.Linear(kOutputMatrix);
  ledger->Take(s.q());
  ledger->Pass(output.gradients + output.backward);
}

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  const ProfileScope profile("swiglu");
  if (const auto* cuda = cuda::For(gate)) return cuda::SwiGlu(*cuda, gate, up);
  if (!HasRowKernels(gate) || !HasRowKernels(up)) return at::silu(gate) * up;
  at::Tensor out = at::empty_like(gate);
  WithStorage(gate.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    const T *g = ReadAs<T>(gate), *u = ReadAs<T>(up);
    T* o = WriteAs<T>(out);
    at::parallel_for(0, gate.numel(), RowGrain(1), [&](int64_t i, int64_t end) {
      Simd().rows<T>().swiglu(g + i, u + i, end - i, o + i);
    });
  });
  return out;
}

SwiGluGradients SwiGluBackward(const at::Tensor& gate, const at::Tensor& up,
                               at::Tensor d_activation) {
  const ProfileScope profile("swiglu");
  if (const auto* cuda = cuda::For(gate)) {
    SwiGluGradients out{at::empty_like(gate), at::empty_like(up),
                        d_activation.contiguous()};
    cuda::SwiGluBackward(*cuda, gate, up, out.activation, out.gate, out.up);
    return out;
  }
  if (!HasRowKernels(gate) || !HasRowKernels(up) ||
      !HasRowKernels(d_activation)) {
    const at::Tensor silu = at::silu(gate);
    return {at::silu_backward(d_activation * up, gate), d_activation * silu,
            silu * up};
  }
  SwiGluGradients out{at::empty_like(gate), at::empty_like(up), d_activation};
  WithStorage(gate.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    const T *g = ReadAs<T>(gate), *u = ReadAs<T>(up);
    T *d = WriteAs<T>(d_activation), *dg = WriteAs<T>(out.gate);
    T* du = WriteAs<T>(out.up);
    at::parallel_for(0, gate.numel(), RowGrain(1), [&](int64_t i, int64_t end) {
      Simd().rows<T>().swiglu_backward(g + i, u + i, end - i, d + i, dg + i,
                                       du + i);
    });
  });
  return out;
}

void PlanGatedMlp(const TransformerBlockShape& s, MemoryLedger* ledger) {
  PlanRmsNorm(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(2 * s.inner());  // gate, up
  ledger->Pass(s.Linear(kUpMatrix).forward);
  ledger->Take(s.inner() + s.x());  // the activation, the output
  ledger->Pass(s.Linear(kDownMatrix).forward);
  ledger->Free(s.inner() + s.x());  // the activation, n
}

void PlanGatedMlpBackward(const TransformerBlockShape& s,
                          MemoryLedger* ledger) {
  const LinearMemory gate = s.Linear(kGateMatrix), up = s.Linear(kUpMatrix);
  const LinearMemory down = s.Linear(kDownMatrix);
  ledger->Take(3 * s.inner());  // d of the activation, gate and up
  ledger->Take(down.gradients);
  ledger->Pass(down.backward);
  ledger->Free(s.inner());
  ledger->Take(s.x());  // n, again
  ledger->Take(gate.gradients + up.gradients + s.x());
  ledger->Pass(up.backward);
  PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
  ledger->Free(2 * s.inner() + 3 * s.x());         // d, n, dn, dy
  ledger->Free(s.x() + 2 * s.inner() + s.rstd());  // what was kept, x included
  // Gradients of parameters live until backward's next operator.
  ledger->Free(gate.gradients + up.gradients + down.gradients +
               s.norm_gradient());
}

at::Tensor GatedMlp(const at::Tensor& x, const GatedMlpWeights& weights,
                    double eps) {
  return GatedMlpFunction::apply(
      x, weights.norm, weights.gate.tensor, weights.up.tensor,
      weights.down.tensor, at::TensorList(AdapterTensors(weights.adapters)),
      eps, c10::ArrayRef<Adapter>(weights.adapters));
}

}  // namespace capstan::kernels
