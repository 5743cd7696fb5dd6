// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/stored_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>

#include <utility>

#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/gpu_path.h"

namespace capstan::kernels {

using torch::autograd::variable_list;

void StoredLinear::AddTo(NodeInputs* inputs) {
  weight_input = inputs->Add(weight.tensor);
  bias_input = inputs->Add(bias);
  a_input = inputs->Add(adapter.a);
  b_input = inputs->Add(adapter.b);
  magnitude_input = inputs->Add(adapter.magnitude);
}

LinearPart::LinearPart(const StoredLinear& stored, int of)
    : of(of),
      weight(stored.weight),
      bias(stored.bias),
      adapter(stored.adapter) {}

LinearPart::LinearPart(const StoredLinear& stored, int of, int64_t begin,
                       int64_t rows)
    : LinearPart(stored, of) {
  this->begin = begin;
  whole = false;
  weight = stored.weight.Rows(begin, rows);
  if (bias.defined()) bias = bias.narrow(0, begin, rows);
  adapter = stored.adapter.Rows(begin, rows);
}

namespace {

// Writes x W^T plus the adapter's, without its factor, to y [n, rows].
void SumInto(const LinearPart& part, const at::Tensor& x, const at::Tensor& y) {
  LinearInto(y, x, part.weight);
  AddAdapter(part.adapter, x, y);
}

at::Tensor LikeDense(const at::Tensor& y) {
  return at::empty(y.sizes(), y.options().requires_grad(false));
}

// ForwardInto, of DoRA.
void ScaledForwardInto(const LinearPart& part, const at::Tensor& x,
                       at::Tensor y, double beta) {
  at::Tensor sum = beta == 0.0 ? y : LikeDense(y);
  SumInto(part, x, sum);
  sum.mul_(part.adapter.factor());
  if (part.bias.defined()) sum.add_(part.bias);
  if (beta != 0.0) y.add_(sum);
}

// The gradient to DoRA's magnitude: [rows] float32, for dy [n, rows]. The sum
// is computed again rather than kept.
at::Tensor MagnitudeGradient(const LinearPart& part, const at::Tensor& x,
                             const at::Tensor& dy) {
  at::Tensor sum = LikeDense(dy);
  SumInto(part, x, sum);
  at::Tensor made = at::empty({part.rows()}, part.adapter.norms.options());
  SumRowsInto(made, sum.mul_(dy), /*add=*/false);
  return made.div_(part.adapter.norms);
}

}  // namespace

at::Tensor GradientToSum(const LinearPart& part, const at::Tensor& dy) {
  if (!part.adapter.dora()) return dy;
  at::Tensor of_sum = LikeDense(dy);
  at::mul_out(of_sum, dy, part.adapter.factor());
  return of_sum;
}

void FillRows(const at::Tensor& bias, const at::Tensor& y) {
  y.copy_(bias.expand_as(y));
}

void ForwardInto(const LinearPart& part, const at::Tensor& x,
                 const at::Tensor& y, double beta) {
  if (part.adapter.dora()) return ScaledForwardInto(part, x, y, beta);
  if (part.bias.defined()) {
    if (beta == 0.0 && !part.weight.packed() && !UsesFp8(part.weight) &&
        OnGpuPath(x)) {
      BiasedMatMulInto(y, x, part.weight.tensor.t(), part.bias);
      return AddAdapter(part.adapter, x, y);
    }
    if (beta == 0.0) {
      FillRows(part.bias, y);
    } else {
      at::Tensor(y).add_(part.bias);
    }
    beta = 1.0;
  }
  LinearInto(y, x, part.weight, beta);
  AddAdapter(part.adapter, x, y);
}

void BackwardInto(const LinearPart& part, const at::Tensor& dy,
                  const at::Tensor& dx, double beta) {
  const at::Tensor of_sum = GradientToSum(part, dy);
  LinearBackwardInto(dx, of_sum, part.weight, beta);
  AdapterBackward(part.adapter, of_sum).AddTo(dx);
}

bool StoredGradients::WantsMatrix() const {
  return Wants(ctx_, stored_.weight_input);
}

StoredGradients::Target StoredGradients::MatrixOf(const LinearPart& part) {
  if (!WantsMatrix()) return {};
  TORCH_CHECK(!part.adapter.dora(), "DoRA's matrix is frozen");
  if (!matrix_.gradient.defined()) {
    const at::Tensor& weight = stored_.weight.tensor;
    const WeightPlace place = {sink_, stored_.parameter};
    matrix_ = place.OpenAny();
    if (!matrix_.gradient.defined()) {
      matrix_.gradient =
          at::empty(weight.sizes(), weight.options().requires_grad(false));
    }
  }
  return {part.whole ? matrix_.gradient
                     : matrix_.gradient.narrow(0, part.begin, part.rows()),
          matrix_.add ? 1.0 : 0.0};
}

StoredGradients::Target StoredGradients::BiasOf(const LinearPart& part) {
  if (!Wants(ctx_, stored_.bias_input)) return {};
  if (!bias_.gradient.defined()) {
    const WeightPlace place = {sink_, stored_.bias_parameter};
    bias_ = place.OpenOnGpu(stored_.bias);
    if (!bias_.gradient.defined()) {
      bias_.gradient = at::empty(stored_.bias.sizes(),
                                 stored_.bias.options().requires_grad(false));
    }
  }
  return {bias_.gradient.narrow(0, part.begin, part.rows()),
          bias_.add ? 1.0 : 0.0};
}

void StoredGradients::AddBias(const LinearPart& part, const at::Tensor& dy) {
  const Target target = BiasOf(part);
  if (target.gradient.defined()) {
    SumRowsInto(target.gradient, dy, target.beta != 0.0);
  }
}

void StoredGradients::AddAdapter(const LinearPart& part, const at::Tensor& x,
                                 const at::Tensor& dy) {
  if (!part.adapter.defined()) return;
  if (part.adapter.dora()) {
    if (!magnitude_.defined()) {
      magnitude_ =
          at::empty(stored_.adapter.magnitude.sizes(),
                    stored_.adapter.magnitude.options().requires_grad(false));
    }
    magnitude_.narrow(0, part.begin, part.rows())
        .copy_(MagnitudeGradient(part, x, dy));
  }
  variable_list made;
  AdapterBackward(part.adapter, GradientToSum(part, dy))
      .AppendWeights(x, &made);
  TakeAdapter(part, std::move(made[0]), std::move(made[1]));
}

void StoredGradients::TakeAdapter(const LinearPart& part, at::Tensor a,
                                  at::Tensor b) {
  if (part.whole) {
    a_ = std::move(a);
    b_ = std::move(b);
    return;
  }
  if (a_.defined()) {
    a_.add_(a);
  } else {
    a_ = std::move(a);
    b_ = at::empty(stored_.adapter.b.sizes(), b.options());
  }
  b_.narrow(0, part.begin, part.rows()).copy_(b);
}

void StoredGradients::Add(const LinearPart& part, const at::Tensor& x,
                          const at::Tensor& dy) {
  const Target target = MatrixOf(part);
  if (target.gradient.defined()) {
    WeightGradientInto(target.gradient, dy, x, part.weight, target.beta);
  }
  AddBias(part, dy);
  AddAdapter(part, x, dy);
}

void StoredGradients::MoveTo(variable_list* gradients) {
  const auto move = [&](int input, at::Tensor* gradient) {
    if (input >= 0) (*gradients)[input] = std::move(*gradient);
  };
  if (!matrix_.wide) move(stored_.weight_input, &matrix_.gradient);
  if (!bias_.wide) move(stored_.bias_input, &bias_.gradient);
  move(stored_.a_input, &a_);
  move(stored_.b_input, &b_);
  move(stored_.magnitude_input, &magnitude_);
}

}  // namespace capstan::kernels
