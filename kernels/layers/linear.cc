// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/profile.h"
#include "base/random.h"
#include "kernels/context/wide_gradient_sink.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"
#include "kernels/gemm/gemm.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/layers/mixed_linear.h"
#include "kernels/memory.h"
#include "kernels/quant/packed_linear.h"

namespace capstan::kernels {
namespace {

// Whether Gemm computes products of it.
bool IsOurs(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() &&
         (type == at::kFloat ||
          ((type == at::kBFloat16 || type == at::kHalf) && !OnGpuPath(x)));
}

// A matrix in Gemm's form.
struct Factor {
  explicit Factor(const at::Tensor& x)
      : transposed(x.stride(1) != 1 && x.size(1) != 1),
        good(transposed ? x.stride(0) == 1 || x.size(0) == 1 : true) {
    WithStorage(x.scalar_type(), [&](auto storage) {
      memory = {ReadAs<decltype(storage)>(x),
                transposed ? x.stride(1) : x.stride(0)};
    });
  }
  bool transposed;
  bool good;  // whether one of its dimensions is dense
  ConstMatrix memory;
};

bool OwnMatMul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
               double beta, double alpha) {
  if (!IsOurs(out) || !IsOurs(a) || !IsOurs(b)) return false;
  const Factor left(a), right(b);
  if (!left.good || !right.good || out.stride(1) != 1 ||
      (left.transposed && right.transposed)) {
    return false;
  }
  Matrix result;
  WithStorage(out.scalar_type(), [&](auto storage) {
    result = {WriteAs<decltype(storage)>(out), out.stride(0)};
  });
  Gemm(left.transposed    ? Transpose::kLeft
       : right.transposed ? Transpose::kRight
                          : Transpose::kNone,
       a.size(0), b.size(1), a.size(1), static_cast<float>(alpha), left.memory,
       right.memory, static_cast<float>(beta), result);
  return true;
}

// A float32 `out` of 16-bit factors. ATen has such products only for CUDA:
// there cuBLAS sums in float32 and adds to `out` in place.
void WideMatMul(at::Tensor out, const at::Tensor& a, const at::Tensor& b,
                double beta, double alpha) {
  const bool plain = beta == 0.0 && alpha == 1.0;
  if (a.is_cuda()) {
    if (plain) {
      at::mm_out(out, a, b, at::kFloat);
    } else {
      at::addmm_out(out, out, a, b, at::kFloat, beta, alpha);
    }
    return;
  }
  const at::Tensor x = a.to(at::kFloat), y = b.to(at::kFloat);
  if (plain) {
    at::mm_out(out, x, y);
  } else {
    at::addmm_out(out, out, x, y, beta, alpha);
  }
}

}  // namespace

void MatMulInto(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                double beta, double alpha) {
  const ProfileScope profile("matrix products");
  if (!OnGpuPath(out) && OwnMatMul(out, a, b, beta, alpha)) return;
  if (out.scalar_type() != a.scalar_type()) {
    return WideMatMul(out, a, b, beta, alpha);
  }
  at::Tensor into = out;
  if (beta == 0.0 && alpha == 1.0) {
    at::mm_out(into, a, b);
  } else {
    at::addmm_out(into, out, a, b, beta, alpha);
  }
}

void BiasedMatMulInto(const at::Tensor& y, const at::Tensor& x,
                      const at::Tensor& transposed, const at::Tensor& bias) {
  const ProfileScope profile("matrix products");
  at::Tensor into = y;
  at::addmm_out(into, bias, x, transposed);
}

at::Tensor MatMul(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  MatMulInto(out, a, b);
  return out;
}

void LinearInto(const at::Tensor& y, const at::Tensor& x, const Weight& weight,
                double beta) {
  if (UsesFp8(weight)) return Fp8LinearInto(y, x, weight, beta);
  if (weight.packed()) return PackedLinearInto(y, x, weight, beta);
  if (IsMixed(x, weight)) return StoredLinearInto(y, x, weight, beta);
  MatMulInto(y, x, weight.tensor.t(), beta);
}

void LinearBackwardInto(const at::Tensor& dx, const at::Tensor& dy,
                        const Weight& weight, double beta) {
  if (UsesFp8(weight)) return Fp8LinearBackwardInto(dx, dy, weight, beta);
  if (weight.packed()) return PackedLinearBackwardInto(dx, dy, weight, beta);
  MatMulInto(dx, dy, weight.tensor, beta);
}

void WeightGradientInto(const at::Tensor& gradient, const at::Tensor& dy,
                        const at::Tensor& x, const Weight& weight,
                        double beta) {
  if (UsesFp8(weight)) {
    return Fp8WeightGradientInto(gradient, dy, x, weight.fp8, beta);
  }
  MatMulInto(gradient, dy.t(), x, beta);
}

GradientSink::Place WeightPlace::Open() const {
  return sink == nullptr || parameter < 0 ? GradientSink::Place()
                                          : sink->Open(parameter);
}

GradientSink::Place WeightPlace::OpenWide() const {
  auto* const wide = dynamic_cast<WideGradientSink*>(sink);
  return wide == nullptr || parameter < 0 ? GradientSink::Place()
                                          : wide->OpenWide(parameter);
}

WeightPlace::AnyPlace WeightPlace::OpenAny() const {
  AnyPlace place = {Open(), /*wide=*/false};
  if (!place.gradient.defined()) {
    place = {OpenWide(), /*wide=*/true};
    place.wide = place.gradient.defined();
  }
  return place;
}

WeightPlace::AnyPlace WeightPlace::OpenOnGpu(const at::Tensor& of) const {
  return OnGpuPath(of) ? OpenAny() : AnyPlace();
}

void SumRowsInto(const at::Tensor& sum, const at::Tensor& x, bool add) {
  at::Tensor into = sum;
  if (add) {
    into.add_(at::sum(x, {0}, /*keepdim=*/false, sum.scalar_type()));
  } else if (sum.scalar_type() == x.scalar_type()) {
    at::sum_out(into, x, {0});
  } else {
    at::sum_out(into, x, {0}, /*keepdim=*/false, sum.scalar_type());
  }
}

// Four channels share the random bits of one counter, made of the token's
// position, the channels and the sample.
at::Tensor DropoutMask(const AdapterDropout& dropout, int64_t rows,
                       int64_t width) {
  const at::Tensor samples = dropout.samples.cpu().contiguous();
  const int64_t* sample = samples.const_data_ptr<int64_t>();
  TORCH_CHECK(samples.numel() > 0 && rows % samples.numel() == 0,
              "dropout has ", samples.numel(), " samples for ", rows, " rows");
  const int64_t length = rows / samples.numel();
  const int64_t groups = (width + 3) / 4;
  const auto dropped_below =
      static_cast<uint64_t>(std::ldexp(dropout.rate, 32));
  at::Tensor mask = at::empty({rows, width}, at::kBool);
  bool* const out = mask.mutable_data_ptr<bool>();
  at::parallel_for(0, rows, RowGrain(width), [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const int64_t first = dropout.positions.Of(row, length) * groups;
      bool* const dropped = out + row * width;
      for (int64_t g = 0; g < groups; ++g) {
        const auto bits =
            RandomBits(dropout.key, first + g,
                       static_cast<uint64_t>(sample[row / length]));
        const int64_t channels = std::min<int64_t>(4, width - 4 * g);
        for (int64_t c = 0; c < channels; ++c) {
          dropped[4 * g + c] = bits[c] < dropped_below;
        }
      }
    }
  });
  return mask;
}

namespace {

// The adapter's input; x itself if nothing is dropped.
at::Tensor Dropped(const AdapterDropout& dropout, const at::Tensor& x) {
  if (!dropout.active()) return x;
  const ProfileScope profile("dropout");
  const auto* const cuda = cuda::For(x);
  if (cuda != nullptr && dropout.positions.jump == 0) {
    return cuda::Dropout(*cuda, x, dropout.samples.to(x.device()), dropout.key,
                         dropout.rate, dropout.positions.first);
  }
  const at::Tensor mask = DropoutMask(dropout, x.size(0), x.size(1));
  at::Tensor out = at::masked_fill(x, mask.to(x.device()), 0.0);
  // Multiplied separately, so that the factor isn't rounded to 16 bits.
  return out.mul_(1.0 / (1.0 - dropout.rate));
}

// The values of W whose norms AdaptedNorms computes at a time.
constexpr int64_t kNormValues = int64_t{1} << 22;

// A weight's values: [rows, columns] float32, in new memory.
at::Tensor Values(const Weight& weight) {
  if (weight.packed()) return Dequantize(weight, at::kFloat);
  at::Tensor values = weight.tensor.to(at::kFloat, /*non_blocking=*/false,
                                       /*copy=*/true);
  if (weight.scales.defined()) values.mul_(weight.scales.unsqueeze(1));
  return values;
}

}  // namespace

at::Tensor Adapter::factor() const {
  TORCH_CHECK(norms.defined(), "a layer with a magnitude has norms");
  return magnitude.to(at::kFloat).div(norms);
}

Adapter Adapter::Rows(int64_t begin, int64_t count) const {
  Adapter part = *this;
  if (defined()) part.b = b.narrow(0, begin, count);
  if (dora()) {
    part.magnitude = magnitude.narrow(0, begin, count);
    part.norms = norms.narrow(0, begin, count);
  }
  return part;
}

at::Tensor AdaptedNorms(const Weight& weight, const Adapter& adapter) {
  const at::NoGradGuard no_grad;
  const ProfileScope profile("norms of adapted matrices");
  const int64_t out = weight.rows();
  const int64_t piece = std::max<int64_t>(1, kNormValues / weight.columns());
  const at::Tensor a = adapter.a.to(at::kFloat);
  const at::Tensor norms = at::empty({out}, a.options().requires_grad(false));
  for (int64_t begin = 0; begin < out; begin += piece) {
    const int64_t rows = std::min(piece, out - begin);
    const at::Tensor values = Values(weight.Rows(begin, rows));
    MatMulInto(values, adapter.b.narrow(0, begin, rows).to(at::kFloat), a,
               /*beta=*/1.0, adapter.scale);
    norms.narrow(0, begin, rows)
        .copy_(at::norm(values, 2, {1}, /*keepdim=*/false));
  }
  const at::Tensor rounded =
      norms.to(adapter.magnitude.scalar_type()).to(at::kFloat);
  // A row of zeros, whose magnitude is 0, too, stays one.
  return rounded.masked_fill(rounded.eq(0.0), 1.0);
}

int64_t PlanAdaptedNorms(int64_t out, int64_t in) {
  return std::min(out * in, std::max(in, kNormValues)) * kFloatBytes;
}

void AddAdapter(const Adapter& adapter, const at::Tensor& x, at::Tensor y) {
  if (!adapter.defined()) return;
  const at::Tensor inner = MatMul(Dropped(adapter.dropout, x), adapter.a.t());
  MatMulInto(y, inner, adapter.b.t(), /*beta=*/1.0, adapter.scale);
}

AdapterBackward::AdapterBackward(const Adapter& adapter, const at::Tensor& dy)
    : adapter_(adapter), dy_(dy) {
  if (!adapter.defined()) return;
  d_inner_ = at::empty({dy.size(0), adapter.b.size(1)},
                       dy.options().requires_grad(false));
  MatMulInto(d_inner_, dy, adapter.b, /*beta=*/0.0, adapter.scale);
}

void AdapterBackward::AddTo(at::Tensor dx) const {
  if (!adapter_.defined()) return;
  if (!adapter_.dropout.active()) {
    MatMulInto(dx, d_inner_, adapter_.a, /*beta=*/1.0);
    return;
  }
  dx.add_(Dropped(adapter_.dropout, MatMul(d_inner_, adapter_.a)));
}

void AdapterBackward::AppendWeights(const at::Tensor& x,
                                    std::vector<at::Tensor>* gradients) const {
  if (!adapter_.defined()) return;
  const at::Tensor dropped = Dropped(adapter_.dropout, x);
  const at::Tensor inner = MatMul(dropped, adapter_.a.t());
  gradients->push_back(MatMul(d_inner_.t(), dropped));
  at::Tensor d_b = at::empty(adapter_.b.sizes(), inner.options());
  MatMulInto(d_b, dy_.t(), inner, /*beta=*/0.0, adapter_.scale);
  gradients->push_back(std::move(d_b));
}

LinearMemory PlanLinear(int64_t rows, int64_t in, int64_t out,
                        c10::ScalarType dtype, bool trained,
                        const AdapterShape& adapter) {
  const int64_t element = ElementBytes(dtype);
  LinearMemory memory;
  if (trained) memory.gradients = out * in * element;
  if (adapter.rank == 0) return memory;
  memory.gradients += adapter.rank * (in + out) * element;
  // [rows, rank]: A x, and the gradient to it.
  const int64_t inner = rows * adapter.rank * element;
  // The mask and the dropped x, or gradient to it.
  const int64_t dropped = adapter.dropout ? rows * in * (1 + element) : 0;
  const int64_t masked = adapter.dropout ? dropped + rows * in * element : 0;
  memory.forward = inner + dropped;
  memory.backward = std::max(2 * inner, inner + masked);
  if (!adapter.dora) return memory;
  memory.gradients += out * element;  // to the magnitude
  // The sum, or the gradient to it.
  memory.backward += rows * out * element;
  return memory;
}

}  // namespace capstan::kernels
