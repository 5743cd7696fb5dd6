// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/orthogonalize.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/gemm/gemm.h"

namespace capstan::kernels {
namespace {

// Rows of the blocks in which a symmetric product is computed: the smaller,
// the less is computed twice; the greater, the faster a product runs.
constexpr int64_t kLeastBlock = 64;
constexpr int64_t kMostBlock = 192;

int64_t BlockRows(int64_t n) {
  const int64_t quarter = (n / 4 + 31) / 32 * 32;
  return std::min(std::max(quarter, kLeastBlock), kMostBlock);
}

// Copies the upper triangle of c [n, n] to the lower one, in tiles, which stay
// in the cache.
void Mirror(float* c, int64_t n) {
  constexpr int64_t kTile = 32;
  at::parallel_for(0, (n + kTile - 1) / kTile, 4, [&](int64_t b, int64_t e) {
    for (int64_t i = b * kTile; i < std::min(n, e * kTile); i += kTile) {
      for (int64_t j = 0; j <= i; j += kTile) {
        for (int64_t y = i; y < std::min(n, i + kTile); ++y) {
          for (int64_t x = j; x < std::min(y, j + kTile); ++x) {
            c[y * n + x] = c[x * n + y];
          }
        }
      }
    }
  });
}

// c [n, n] = alpha * a b + beta * c in float32, for factors whose product is
// symmetric (and a symmetric c): a is [n, k], b [k, n], passed as Gemm wants
// it.
void SymmetricProduct(Transpose transpose, int64_t n, int64_t k, float alpha,
                      ConstMatrix a, ConstMatrix b, float beta, float* c) {
  const int64_t rows = BlockRows(n);
  for (int64_t i = 0; i < n; i += rows) {
    const ConstMatrix left = {
        static_cast<const float*>(a.data) +
            (transpose == Transpose::kLeft ? i : i * a.stride),
        a.stride};
    const ConstMatrix right = {
        static_cast<const float*>(b.data) +
            (transpose == Transpose::kRight ? i * b.stride : i),
        b.stride};
    Gemm(transpose, std::min(rows, n - i), n - i, k, alpha, left, right, beta,
         {c + i * n + i, n});
  }
  Mirror(c, n);
}

// Float32, in memory, of one matrix.
class Iterations {
 public:
  Iterations(const NewtonSchulz& options, int64_t rows, int64_t columns)
      : options_(options),
        rows_(rows),
        columns_(columns),
        n_(std::min(rows, columns)),
        on_gram_(OnGramMatrix(rows, columns,
                              static_cast<int64_t>(options.steps.size()))) {
    const auto space = [](int64_t numel) { return at::empty({numel}); };
    other_ = space(rows * columns);
    for (at::Tensor* square : {&gram_, &polynomial_}) *square = space(n_ * n_);
    if (on_gram_) {
      for (at::Tensor* square : {&product_, &all_}) *square = space(n_ * n_);
    }
  }

  // In place.
  void Run(float* x) {
    Normalize(x);
    if (options_.steps.empty()) return;
    if (on_gram_) {
      OnGram(x);
    } else {
      OnMatrix(x);
    }
  }

 private:
  static float* Data(const at::Tensor& t) {
    return t.mutable_data_ptr<float>();
  }
  ConstMatrix Square(const at::Tensor& t) const { return {Data(t), n_}; }

  // The sum is of doubles, in one order.
  void Normalize(float* x) const {
    const int64_t numel = rows_ * columns_;
    constexpr int64_t kLanes = 16;
    double sums[kLanes] = {};
    const int64_t even = numel / kLanes * kLanes;
    for (int64_t i = 0; i < even; i += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) {
        sums[j] += static_cast<double>(x[i + j]) * x[i + j];
      }
    }
    double sum = 0.0;
    for (int64_t i = even; i < numel; ++i) {
      sum += static_cast<double>(x[i]) * x[i];
    }
    for (const double s : sums) sum += s;
    const float factor = static_cast<float>(
        1.0 / std::max(options_.margin * std::sqrt(sum), options_.epsilon));
    for (int64_t i = 0; i < numel; ++i) x[i] *= factor;
  }

  // gram_ = X X^T or X^T X, of the smaller size.
  void MakeGram(const float* x) {
    const ConstMatrix m = {x, columns_};
    SymmetricProduct(wide() ? Transpose::kRight : Transpose::kLeft, n_,
                     std::max(rows_, columns_), 1.0f, m, m, 0.0f, Data(gram_));
  }

  // to = square X or X square.
  void Multiply(const at::Tensor& square, const float* x, float* to) const {
    const ConstMatrix m = {x, columns_};
    const Matrix out = {to, columns_};
    if (wide()) {
      Gemm(Transpose::kNone, rows_, columns_, rows_, 1.0f, Square(square), m,
           0.0f, out);
    } else {
      Gemm(Transpose::kNone, rows_, columns_, columns_, 1.0f, m, Square(square),
           0.0f, out);
    }
  }

  // polynomial_ = a I + b G + c G^2.
  void MakePolynomial(const QuinticStep& step) {
    std::memcpy(Data(polynomial_), Data(gram_), n_ * n_ * sizeof(float));
    SymmetricProduct(Transpose::kNone, n_, n_, static_cast<float>(step.c),
                     Square(gram_), Square(gram_), static_cast<float>(step.b),
                     Data(polynomial_));
    float* const p = Data(polynomial_);
    for (int64_t i = 0; i < n_; ++i) {
      p[i * n_ + i] += static_cast<float>(step.a);
    }
  }

  void OnMatrix(float* x) {
    float* from = x;
    float* to = Data(other_);
    for (const QuinticStep& step : options_.steps) {
      MakeGram(from);
      MakePolynomial(step);
      Multiply(polynomial_, from, to);
      std::swap(from, to);
    }
    if (from != x) std::memcpy(x, from, rows_ * columns_ * sizeof(float));
  }

  // to = a b, all symmetric, and a and b polynomials of one matrix.
  void Commuting(const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& to) const {
    SymmetricProduct(Transpose::kNone, n_, n_, 1.0f, Square(a), Square(b), 0.0f,
                     Data(to));
  }

  // X_K = P_K .. P_1 X_0, where P_k is a polynomial of G_k = X_k X_k^T and
  // G_(k+1) = P_k G_k P_k; all commute.
  void OnGram(float* x) {
    MakeGram(x);
    for (size_t k = 0; k < options_.steps.size(); ++k) {
      MakePolynomial(options_.steps[k]);
      if (k + 1 < options_.steps.size()) {
        Commuting(polynomial_, gram_, product_);
        Commuting(polynomial_, product_, gram_);
      }
      if (k == 0) {
        std::swap(all_, polynomial_);
      } else {
        Commuting(polynomial_, all_, product_);
        std::swap(all_, product_);
      }
    }
    Multiply(all_, x, Data(other_));
    std::memcpy(x, Data(other_), rows_ * columns_ * sizeof(float));
  }

  bool wide() const { return rows_ <= columns_; }

  const NewtonSchulz& options_;
  const int64_t rows_, columns_, n_;
  const bool on_gram_;
  at::Tensor other_, gram_, polynomial_, product_;
  at::Tensor all_;  // P_k .. P_1
};

// torch.optim.Muon's operations, also for stacks.
void ByLibTorch(const NewtonSchulz& options, const at::Tensor& matrices,
                int64_t rows, int64_t columns) {
  const at::Tensor all = matrices.view({-1, rows, columns});
  at::Tensor x = all.to(options.dtype);
  if (rows > columns) x = x.transpose(1, 2);
  const at::Tensor norm =
      at::linalg_vector_norm(x, 2, at::IntArrayRef{1, 2}, /*keepdim=*/true);
  x = x / (norm * options.margin).clamp_min(options.epsilon);
  for (const QuinticStep& step : options.steps) {
    const at::Tensor gram = at::bmm(x, x.transpose(1, 2));
    const at::Tensor polynomial = at::baddbmm(gram, gram, gram, step.b, step.c);
    x = at::baddbmm(x, polynomial, x, step.a, 1.0);
  }
  all.copy_(rows > columns ? x.transpose(1, 2) : x);
}

}  // namespace

std::vector<QuinticStep> JordanSteps(int steps) {
  return std::vector<QuinticStep>(steps, {3.4445, -4.7750, 2.0315});
}

std::vector<QuinticStep> PolarExpressSteps(int steps) {
  constexpr QuinticStep kSteps[kPolarSteps] = {
      {8.156554524902461, -22.48329292557795, 15.878769915207462},
      {4.042929935166739, -2.808917465908714, 0.5000178451051316},
      {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
      {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
      {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
  return std::vector<QuinticStep>(kSteps, kSteps + steps);
}

bool OnGramMatrix(int64_t rows, int64_t columns, int64_t steps) {
  const int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  return 3 * n + (4 * steps - 3) * m < steps * (3 * n + m);
}

int64_t OrthogonalizeWorkspace(const NewtonSchulz& options, int64_t numel,
                               int64_t rows, int64_t columns, bool on_gpu) {
  const int64_t matrix = rows * columns;
  if (numel == 0 || matrix == 0) return 0;
  const int64_t n = std::min(rows, columns), square = n * n;
  if (!on_gpu && options.dtype == at::kFloat) {
    // One matrix at a time.
    const bool on_gram =
        OnGramMatrix(rows, columns, static_cast<int64_t>(options.steps.size()));
    return 4 * (matrix + (on_gram ? 4 : 2) * square);
  }
  // X before and after a step, its Gram matrix and the polynomial.
  const int64_t element = static_cast<int64_t>(c10::elementSize(options.dtype));
  return element * 2 * (numel + numel / matrix * square);
}

void Orthogonalize(const NewtonSchulz& options, const at::Tensor& matrices) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(matrices.dim() >= 2 && matrices.is_contiguous() &&
                  matrices.scalar_type() == at::kFloat,
              "Orthogonalize wants contiguous float32 matrices");
  TORCH_CHECK(options.dtype == at::kFloat || options.dtype == at::kBFloat16,
              "Orthogonalize computes in float32 or bfloat16");
  if (matrices.numel() == 0) return;
  const int64_t rows = matrices.size(-2), columns = matrices.size(-1);
  if (!matrices.is_cpu() || options.dtype != at::kFloat) {
    return ByLibTorch(options, matrices, rows, columns);
  }
  Iterations iterations(options, rows, columns);
  float* const data = matrices.mutable_data_ptr<float>();
  for (int64_t i = 0; i < matrices.numel(); i += rows * columns) {
    iterations.Run(data + i);
  }
}

}  // namespace capstan::kernels
