// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/stored_linear.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "kernels/layers/gpu_path.h"

namespace capstan::kernels {

using torch::autograd::variable_list;

void StoredLinear::AddTo(NodeInputs* inputs) {
  weight_input = inputs->Add(weight.tensor);
  bias_input = inputs->Add(bias);
  a_input = inputs->Add(adapter.a);
  b_input = inputs->Add(adapter.b);
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
  if (adapter.defined()) adapter.b = adapter.b.narrow(0, begin, rows);
}

void FillRows(const at::Tensor& bias, const at::Tensor& y) {
  y.copy_(bias.expand_as(y));
}

void ForwardInto(const LinearPart& part, const at::Tensor& x,
                 const at::Tensor& y, double beta) {
  if (part.bias.defined()) {
    if (beta == 0.0 && !part.weight.packed() && OnGpuPath(x)) {
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
  LinearBackwardInto(dx, dy, part.weight, beta);
  AdapterBackward(part.adapter, dy).AddTo(dx);
}

StoredGradients::Target StoredGradients::MatrixOf(const LinearPart& part) {
  if (!Wants(ctx_, stored_.weight_input)) return {};
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
  variable_list made;
  AdapterBackward(part.adapter, dy).AppendWeights(x, &made);
  if (part.whole) {
    a_ = std::move(made[0]);
    b_ = std::move(made[1]);
    return;
  }
  if (a_.defined()) {
    a_.add_(made[0]);
  } else {
    a_ = std::move(made[0]);
    b_ = at::empty(stored_.adapter.b.sizes(), made[1].options());
  }
  b_.narrow(0, part.begin, part.rows()).copy_(made[1]);
}

void StoredGradients::Add(const LinearPart& part, const at::Tensor& x,
                          const at::Tensor& dy) {
  const Target target = MatrixOf(part);
  if (target.gradient.defined()) {
    MatMulInto(target.gradient, dy.t(), x, target.beta);
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
}

}  // namespace capstan::kernels
