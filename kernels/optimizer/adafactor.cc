// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adafactor.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

// Work is cut into rows, or pieces of this many elements, whatever the number
// of threads, so that sums don't depend on it.
constexpr int64_t kPiece = 1 << 14;
constexpr int64_t kColumnsAtOnce = 512;

// Reads gradients of any dtype.
class Gradients {
 public:
  Gradients(const at::Tensor& gradient, float scale)
      : data_(gradient.const_data_ptr()),
        type_(gradient.scalar_type()),
        scale_(scale) {}
  // out[i] = scaled element begin + i.
  void Read(int64_t begin, int64_t count, float* out) const {
    if (type_ == at::kFloat) return Convert<float>(begin, count, out);
    if (type_ == at::kBFloat16) {
      return Convert<at::BFloat16>(begin, count, out);
    }
    Convert<at::Half>(begin, count, out);
  }

 private:
  template <typename T>
  void Convert(int64_t begin, int64_t count, float* out) const {
    const T* const from = static_cast<const T*>(data_) + begin;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<float>(from[i]) * scale_;
    }
  }

  const void* const data_;
  const at::ScalarType type_;
  const float scale_;
};

// f(x) summed over a piece, in an order of its own.
template <typename F>
double SumOf(int64_t count, const F& f) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += f(i + l);
  }
  double sum = 0.0;
  for (; i < count; ++i) sum += f(i);
  for (const double lane : lanes) sum += lane;
  return sum;
}

// fn(piece, begin, count) for each piece of [0, n), by all threads; a piece
// ends at each multiple of `row`.
class Pieces {
 public:
  Pieces(int64_t n, int64_t row)
      : n_(n), row_(row), per_row_((row + kPiece - 1) / kPiece) {}
  int64_t size() const { return n_ / row_ * per_row_; }
  void ForEach(const std::function<void(int64_t, int64_t, int64_t)>& fn) const {
    at::parallel_for(0, size(), 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t column = p % per_row_ * kPiece;
        fn(p, p / per_row_ * row_ + column, std::min(kPiece, row_ - column));
      }
    });
  }
  // The sum of fn's values, added in order.
  double Sum(const std::function<double(int64_t, int64_t)>& fn) const {
    std::vector<double> sums(size());
    ForEach([&](int64_t p, int64_t begin, int64_t count) {
      sums[p] = fn(begin, count);
    });
    double sum = 0.0;
    for (const double s : sums) sum += s;
    return sum;
  }

 private:
  const int64_t n_, row_, per_row_;
};

float* FloatsOf(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
}

// The update of one parameter on the CPU, in passes over its gradient.
class CpuStep {
 public:
  CpuStep(const AdafactorOptions& o, const AdafactorBuffers& b, float scale)
      : o_(o),
        b_(b),
        n_(b.parameter.numel()),
        factored_(b.row.defined()),
        columns_(factored_ ? b.columns : n_),
        rows_(factored_ ? b.rows : 1),
        gradients_(b.gradient, scale),
        pieces_(n_, columns_),
        parameter_(FloatsOf(b.parameter)) {
    const double beta2 =
        1.0 - std::pow(static_cast<double>(o.step), o.decay_rate);
    beta2_ = static_cast<float>(beta2);
    weight2_ = static_cast<float>(1.0 - beta2);
    epsilon_ = static_cast<float>(o.epsilon);
  }

  void Run() {
    double rate = o_.learning_rate;
    if (o_.scale_parameter) {
      rate *= std::max(o_.least_scale, Rms([this](int64_t begin, int64_t) {
                         return parameter_ + begin;
                       }));
    }
    factored_ ? UpdateMeans() : UpdateSecondMoment();
    const double rms = RmsOfUpdate();
    Apply(rate, rate / std::max(1.0, rms / o_.clip_threshold));
  }

 private:
  template <typename F>
  double Rms(const F& values) const {
    return std::sqrt(pieces_.Sum([&](int64_t begin, int64_t count) {
      const float* const x = values(begin, count);
      return SumOf(count,
                   [x](int64_t i) { return static_cast<double>(x[i]) * x[i]; });
    }) / static_cast<double>(n_));
  }

  void UpdateMeans() {
    const int64_t lines = n_ / columns_;
    float* const row = FloatsOf(b_.row);
    at::parallel_for(0, lines, 1, [&](int64_t first, int64_t last) {
      std::vector<float> g(columns_);
      for (int64_t line = first; line < last; ++line) {
        gradients_.Read(line * columns_, columns_, g.data());
        const double sum = SumOf(columns_, [&](int64_t i) {
          return static_cast<double>(g[i] * g[i] + epsilon_);
        });
        Blend(static_cast<float>(sum / static_cast<double>(columns_)),
              row + line);
      }
    });
    UpdateColumns();
  }

  void UpdateColumns() {
    const int64_t matrices = n_ / (rows_ * columns_);
    const int64_t groups = (columns_ + kColumnsAtOnce - 1) / kColumnsAtOnce;
    float* const column = FloatsOf(b_.column);
    at::parallel_for(0, matrices * groups, 1, [&](int64_t first, int64_t last) {
      float g[kColumnsAtOnce];
      double sums[kColumnsAtOnce];
      for (int64_t i = first; i < last; ++i) {
        const int64_t matrix = i / groups;
        const int64_t begin = i % groups * kColumnsAtOnce;
        const int64_t count = std::min(kColumnsAtOnce, columns_ - begin);
        std::fill(sums, sums + count, 0.0);
        for (int64_t r = 0; r < rows_; ++r) {
          gradients_.Read((matrix * rows_ + r) * columns_ + begin, count, g);
          for (int64_t c = 0; c < count; ++c) {
            sums[c] += static_cast<double>(g[c] * g[c] + epsilon_);
          }
        }
        for (int64_t c = 0; c < count; ++c) {
          Blend(static_cast<float>(sums[c] / static_cast<double>(rows_)),
                column + matrix * columns_ + begin + c);
        }
      }
    });
    MakeFactors(matrices);
  }

  // 1 / sqrt(v) is the product of a row's and a column's factor.
  void MakeFactors(int64_t matrices) {
    const float* const row = FloatsOf(b_.row);
    const float* const column = FloatsOf(b_.column);
    row_factors_.resize(matrices * rows_);
    column_factors_.resize(matrices * columns_);
    for (int64_t m = 0; m < matrices; ++m) {
      const double mean =
          SumOf(rows_,
                [&](int64_t i) {
                  return static_cast<double>(row[m * rows_ + i]);
                }) /
          static_cast<double>(rows_);
      for (int64_t i = m * rows_; i < (m + 1) * rows_; ++i) {
        row_factors_[i] = 1.0f / std::sqrt(row[i] / static_cast<float>(mean));
      }
    }
    for (size_t i = 0; i < column_factors_.size(); ++i) {
      column_factors_[i] = 1.0f / std::sqrt(column[i]);
    }
  }

  void UpdateSecondMoment() {
    float* const v = FloatsOf(b_.exp_avg_sq);
    pieces_.ForEach([&](int64_t, int64_t begin, int64_t count) {
      std::vector<float> g(count);
      gradients_.Read(begin, count, g.data());
      for (int64_t i = 0; i < count; ++i) {
        Blend(g[i] * g[i] + epsilon_, v + begin + i);
      }
    });
  }

  void Blend(float value, float* mean) const {
    *mean = *mean * beta2_ + value * weight2_;
  }

  // u before it is clipped.
  void ReadUpdate(int64_t begin, int64_t count, float* u) const {
    gradients_.Read(begin, count, u);
    if (!factored_) {
      const float* const v = FloatsOf(b_.exp_avg_sq) + begin;
      for (int64_t i = 0; i < count; ++i) u[i] = u[i] / std::sqrt(v[i]);
      return;
    }
    const int64_t line = begin / columns_;
    const float row = row_factors_[line];
    const float* const column =
        column_factors_.data() + line / rows_ * columns_ + begin % columns_;
    for (int64_t i = 0; i < count; ++i) u[i] *= row * column[i];
  }

  double RmsOfUpdate() const {
    return std::sqrt(pieces_.Sum([&](int64_t begin, int64_t count) {
      std::vector<float> u(count);
      ReadUpdate(begin, count, u.data());
      return SumOf(
          count, [&u](int64_t i) { return static_cast<double>(u[i]) * u[i]; });
    }) / static_cast<double>(n_));
  }

  // p -= decay * p + factor * u
  void Apply(double rate, double update_factor) {
    const float decay = static_cast<float>(1.0 - rate * o_.weight_decay);
    const float factor = static_cast<float>(update_factor);
    const float beta1 = static_cast<float>(o_.beta1);
    const float weight1 = static_cast<float>(1.0 - o_.beta1);
    float* const exp_avg = FloatsOf(b_.exp_avg);
    pieces_.ForEach([&](int64_t, int64_t begin, int64_t count) {
      std::vector<float> u(count);
      ReadUpdate(begin, count, u.data());
      float* const p = parameter_ + begin;
      if (exp_avg == nullptr) {
        for (int64_t i = 0; i < count; ++i) {
          p[i] = p[i] * decay - u[i] * factor;
        }
      } else {
        float* const m = exp_avg + begin;
        for (int64_t i = 0; i < count; ++i) {
          m[i] = m[i] * beta1 + u[i] * factor * weight1;
          p[i] = p[i] * decay - m[i];
        }
      }
    });
  }

  const AdafactorOptions& o_;
  const AdafactorBuffers& b_;
  const int64_t n_;
  const bool factored_;
  const int64_t columns_, rows_;
  const Gradients gradients_;
  const Pieces pieces_;
  float* const parameter_;
  float beta2_ = 0.0f, weight2_ = 0.0f, epsilon_ = 0.0f;
  std::vector<float> row_factors_, column_factors_;
};

void CheckBuffers(const AdafactorBuffers& b) {
  const int64_t n = b.parameter.numel();
  const auto check = [&](const at::Tensor& t, int64_t numel, auto... types) {
    CheckBuffer("Adafactor", t, b.parameter, numel, types...);
  };
  CheckGradientAndWorking("Adafactor", b.gradient, b.working, b.parameter);
  if (b.row.defined()) {
    TORCH_CHECK(b.rows > 0 && b.columns > 0 && n % (b.rows * b.columns) == 0,
                "Adafactor's rows and columns aren't those of its parameter");
    check(b.row, n / b.columns, at::kFloat);
    check(b.column, n / b.rows, at::kFloat);
  } else {
    check(b.exp_avg_sq, n, at::kFloat);
  }
  if (b.exp_avg.defined()) check(b.exp_avg, n, at::kFloat);
}

at::Tensor RmsOf(const at::Tensor& t) {
  return at::linalg_vector_norm(t) / std::sqrt(static_cast<double>(t.numel()));
}

}  // namespace

void AdafactorByLibTorch(const AdafactorOptions& o, const AdafactorBuffers& b) {
  at::NoGradGuard no_grad;
  CheckBuffers(b);
  const GuardedStep guarded(o.gradient_scale, b.device_scale);
  at::Tensor g = guarded.Scaled(b.gradient);
  const double beta2 =
      1.0 - std::pow(static_cast<double>(o.step), o.decay_rate);
  at::Tensor rate = at::full({}, o.learning_rate, b.parameter.options());
  if (o.scale_parameter) {
    rate = rate * RmsOf(b.parameter).clamp_min(o.least_scale);
  }
  at::Tensor squares = g.square().add_(o.epsilon);
  at::Tensor u;
  if (b.row.defined()) {
    const at::Tensor s = squares.view({-1, b.rows, b.columns});
    const at::Tensor row = b.row.view({-1, b.rows}) * beta2 +
                           s.mean(at::IntArrayRef{-1}) * (1.0 - beta2);
    const at::Tensor column = b.column.view({-1, b.columns}) * beta2 +
                              s.mean(at::IntArrayRef{-2}) * (1.0 - beta2);
    const at::Tensor row_factor =
        (row / row.mean(at::IntArrayRef{-1}, true)).rsqrt().unsqueeze(-1);
    u = (row_factor * column.rsqrt().unsqueeze(-2)).view({-1}).mul_(g);
    guarded.Write(b.row, row.view({-1}));
    guarded.Write(b.column, column.view({-1}));
  } else {
    squares.mul_(1.0 - beta2).add_(b.exp_avg_sq * beta2);
    u = squares.rsqrt().mul_(g);
    guarded.Write(b.exp_avg_sq, squares);
  }
  squares.reset();
  g.reset();
  u.div_((RmsOf(u) / o.clip_threshold).clamp_min(1.0)).mul_(rate);
  if (b.exp_avg.defined()) {
    u.mul_(1.0 - o.beta1).add_(b.exp_avg * o.beta1);
    guarded.Write(b.exp_avg, u);
  }
  guarded.Write(
      b.parameter,
      (b.parameter * (rate * o.weight_decay)).neg_().add_(b.parameter).sub_(u));
  if (b.working.defined()) b.working.copy_(b.parameter);
}

void AdafactorStep(const AdafactorOptions& options, const AdafactorBuffers& b) {
  CheckBuffers(b);
  if (!b.parameter.is_cpu()) return AdafactorByLibTorch(options, b);
  const absl::optional<float> scale =
      HostScale(options.gradient_scale, b.device_scale);
  if (!scale.has_value() || b.parameter.numel() == 0) return;
  CpuStep(options, b, *scale).Run();
  if (b.working.defined()) b.working.copy_(b.parameter);
}

}  // namespace capstan::kernels
