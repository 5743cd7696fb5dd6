// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "base/profile.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/layers/transformer_block_shape.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A matrix in Gemm's form.
struct Factor {
  explicit Factor(const at::Tensor& x)
      : transposed(x.stride(1) != 1 && x.size(1) != 1),
        good(transposed ? x.stride(0) == 1 || x.size(0) == 1 : true) {
    memory.data = x.const_data_ptr<float>();
    memory.stride = transposed ? x.stride(1) : x.stride(0);
  }
  bool transposed;
  bool good;  // whether one of its dimensions is dense
  ConstMatrix memory;
};

bool OwnMatMul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
               double beta, double alpha) {
  if (!FastPath(out) || !FastPath(a) || !FastPath(b)) return false;
  const Factor left(a), right(b);
  if (!left.good || !right.good || out.stride(1) != 1 ||
      (left.transposed && right.transposed)) {
    return false;
  }
  Gemm(left.transposed    ? Transpose::kLeft
       : right.transposed ? Transpose::kRight
                          : Transpose::kNone,
       a.size(0), b.size(1), a.size(1), static_cast<float>(alpha), left.memory,
       right.memory, static_cast<float>(beta),
       {out.mutable_data_ptr<float>(), out.stride(0)});
  return true;
}

class LinearAddFunction : public torch::autograd::Function<LinearAddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& residual,
                            at::TensorList adapter_tensors,
                            const Adapter& adapter) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["adapter"] = KeepAdapters(adapter);
    at::Tensor out = residual.clone();
    MatMulInto(out, x, weight.t(), /*beta=*/1.0);
    AddAdapter(adapter, x, out);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = grads[0];
    const auto kept = AdaptersIn(ctx->saved_data["adapter"]);
    const AdapterBackward adapter(kept->adapters[0], dy);
    variable_list out(3);
    if (ctx->needs_input_grad(0)) {
      out[0] = MatMul(dy, weight);
      adapter.AddTo(out[0]);
    }
    if (ctx->needs_input_grad(1)) out[1] = WeightGradient({}, dy, x);
    out[2] = dy;
    adapter.AppendWeights(x, &out);
    out.emplace_back();  // the adapter
    return out;
  }
};

}  // namespace

void MatMulInto(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                double beta, double alpha) {
  const ProfileScope profile("matrix products");
  if (OwnMatMul(out, a, b, beta, alpha)) return;
  at::Tensor into = out;
  if (beta == 0.0 && alpha == 1.0) {
    at::mm_out(into, a, b);
  } else {
    at::addmm_out(into, out, a, b, beta, alpha);
  }
}

at::Tensor MatMul(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  MatMulInto(out, a, b);
  return out;
}

GradientSink::Place WeightPlace::Open() const {
  return sink == nullptr ? GradientSink::Place() : sink->Open(parameter);
}

at::Tensor LinearAdd(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& residual, const Adapter& adapter) {
  return LinearAddFunction::apply(
      x, weight, residual, at::TensorList(AdapterTensors(adapter)), adapter);
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

at::Tensor WeightGradient(const WeightPlace& to, const at::Tensor& dy,
                          const at::Tensor& x) {
  GradientSink::Place place = to.Open();
  if (!place.gradient.defined()) return MatMul(dy.t(), x);
  MatMulInto(place.gradient, dy.t(), x, place.add ? 1.0 : 0.0);
  return std::move(place.gradient);
}

}  // namespace capstan::kernels
