// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/muon.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

// Elements per thread, below which waking one costs more than it saves.
constexpr int64_t kGrain = 32768;
// As in NorMuon's published code: a row that never moved stays.
constexpr double kRowEpsilon = 1e-10;

double Rate(const MuonOptions& o, const MuonBuffers& b) {
  const double rows = static_cast<double>(b.rows);
  const double columns = static_cast<double>(b.columns);
  switch (o.rate) {
    case MuonRate::kMatchRmsAdamW:
      return o.learning_rate * 0.2 * std::sqrt(std::max(rows, columns));
    default:
      return o.learning_rate * std::sqrt(std::max(1.0, rows / columns));
  }
}

void CheckBuffers(const MuonBuffers& b) {
  const int64_t n = b.parameter.numel();
  const auto check = [&](const at::Tensor& t, int64_t numel, auto... types) {
    CheckBuffer("Muon", t, b.parameter, numel, types...);
  };
  CheckGradientAndWorking("Muon", b.gradient, b.working, b.parameter);
  TORCH_CHECK(b.rows > 0 && b.columns > 0 && n % (b.rows * b.columns) == 0,
              "Muon's rows and columns aren't those of its parameter");
  check(b.momentum, n, at::kFloat);
  if (b.row_moment.defined()) check(b.row_moment, n / b.columns, at::kFloat);
}

// u: the scaled gradient; becomes what is orthogonalised.
void Momentum(const MuonOptions& o, float scale, float* u, float* m,
              int64_t numel) {
  const float momentum = static_cast<float>(o.momentum);
  const float weight = static_cast<float>(1.0 - o.momentum);
  const bool nesterov = o.nesterov;
  at::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float g = u[i] * scale;
      const float next = m[i] + weight * (g - m[i]);
      m[i] = next;
      u[i] = nesterov ? g + momentum * (next - g) : next;
    }
  });
}

double SquaredNorm(const float* row, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(row[i]) * row[i];
  }
  return sum;
}

// NorMuon's factors of the rows of one matrix.
std::vector<float> RowFactors(const MuonOptions& o, const MuonBuffers& b,
                              const float* u, float* row_moment) {
  std::vector<double> squares(b.rows);
  std::vector<float> factors(b.rows);
  double before = 0.0, after = 0.0;
  for (int64_t r = 0; r < b.rows; ++r) {
    squares[r] = SquaredNorm(u + r * b.columns, b.columns);
    const double mean = squares[r] / static_cast<double>(b.columns);
    row_moment[r] =
        static_cast<float>(o.beta2 * row_moment[r] + (1.0 - o.beta2) * mean);
    const double factor =
        1.0 / (std::sqrt(static_cast<double>(row_moment[r])) + kRowEpsilon);
    factors[r] = static_cast<float>(factor);
    before += squares[r];
    after += squares[r] * factor * factor;
  }
  const float norm =
      after > 0.0 ? static_cast<float>(std::sqrt(before / after)) : 0.0f;
  for (float& factor : factors) factor *= norm;
  return factors;
}

// p = decay p - rate factor[row] u.
void Move(const MuonBuffers& b, float decay, float rate,
          const std::vector<float>& factors, const float* u, float* p) {
  const int64_t columns = b.columns;
  at::parallel_for(0, b.rows, std::max<int64_t>(1, kGrain / columns),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; ++r) {
                       const float f =
                           factors.empty() ? rate : rate * factors[r];
                       const float* const from = u + r * columns;
                       float* const to = p + r * columns;
                       for (int64_t i = 0; i < columns; ++i) {
                         to[i] = to[i] * decay - f * from[i];
                       }
                     }
                   });
}

void OnCpu(const MuonOptions& o, const MuonBuffers& b, float scale) {
  const int64_t numel = b.parameter.numel(), matrix = b.rows * b.columns;
  const at::Tensor updates =
      b.gradient.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  float* const u = updates.mutable_data_ptr<float>();
  Momentum(o, scale, u, b.momentum.mutable_data_ptr<float>(), numel);
  Orthogonalize(o.newton_schulz, updates.view({-1, b.rows, b.columns}));
  const float decay =
      static_cast<float>(1.0 - o.learning_rate * o.weight_decay);
  const float rate = static_cast<float>(Rate(o, b));
  float* const p = b.parameter.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numel; i += matrix) {
    std::vector<float> factors;
    if (b.row_moment.defined()) {
      factors = RowFactors(
          o, b, u + i, b.row_moment.mutable_data_ptr<float>() + i / b.columns);
    }
    Move(b, decay, rate, factors, u + i, p + i);
  }
  if (b.working.defined()) b.working.copy_(b.parameter);
}

at::Tensor NormOfEach(const at::Tensor& matrices) {
  return at::linalg_vector_norm(matrices, 2, at::IntArrayRef{1, 2},
                                /*keepdim=*/true);
}

}  // namespace

void MuonByLibTorch(const MuonOptions& o, const MuonBuffers& b) {
  at::NoGradGuard no_grad;
  CheckBuffers(b);
  const GuardedStep guarded(o.gradient_scale, b.device_scale);
  at::Tensor u = guarded.Scaled(b.gradient);
  {
    const at::Tensor momentum = b.momentum.lerp(u, 1.0 - o.momentum);
    if (o.nesterov) {
      u.lerp_(momentum, o.momentum);
    } else {
      u.copy_(momentum);
    }
    guarded.Write(b.momentum, momentum);
  }
  const at::Tensor matrices = u.view({-1, b.rows, b.columns});
  Orthogonalize(o.newton_schulz, matrices);
  if (b.row_moment.defined()) {
    const at::Tensor moment =
        b.row_moment * o.beta2 +
        matrices.square().mean(at::IntArrayRef{-1}).view({-1}) *
            (1.0 - o.beta2);
    guarded.Write(b.row_moment, moment);
    const at::Tensor before = NormOfEach(matrices);
    matrices.div_((moment.sqrt() + kRowEpsilon).view({-1, b.rows, 1}));
    matrices.mul_(before / NormOfEach(matrices).clamp_min(kRowEpsilon));
  }
  u.mul_(-Rate(o, b)).add_(b.parameter, 1.0 - o.learning_rate * o.weight_decay);
  guarded.Write(b.parameter, u);
  if (b.working.defined()) b.working.copy_(b.parameter);
}

int64_t MuonWorkspace(const NewtonSchulz& options, int64_t numel, int64_t rows,
                      int64_t columns, bool on_gpu) {
  const int64_t update = 4 * numel;
  const int64_t products =
      update + OrthogonalizeWorkspace(options, numel, rows, columns, on_gpu);
  // On a GPU the momentum, too, and what becomes of it.
  return on_gpu ? std::max(products, 3 * update) : products;
}

void MuonStep(const MuonOptions& options, const MuonBuffers& b) {
  CheckBuffers(b);
  if (!b.parameter.is_cpu()) return MuonByLibTorch(options, b);
  at::NoGradGuard no_grad;
  const absl::optional<float> scale =
      HostScale(options.gradient_scale, b.device_scale);
  if (!scale.has_value() || b.parameter.numel() == 0) return;
  OnCpu(options, b, *scale);
}

}  // namespace capstan::kernels
