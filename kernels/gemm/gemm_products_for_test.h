// SPDX-License-Identifier: Apache-2.0
//
// For tests of products: problems with their memory, and what their results
// must be.
#ifndef CAPSTAN_KERNELS_GEMM_GEMM_PRODUCTS_FOR_TEST_H_
#define CAPSTAN_KERNELS_GEMM_GEMM_PRODUCTS_FOR_TEST_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/simd/simd_numbers_for_test.h"
#include "kernels/gemm/gemm.h"

namespace capstan::kernels {

struct Case {
  int64_t m, n, k;
  bool a_transposed = false;
  bool b_transposed = false;
  float alpha = 1.0f;
  float beta = 0.0f;
};

// Sizes around those of tiles, panels, blocks and pairs.
inline std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int64_t m : {1, 13, 14, 15, 16, 33, 47}) {
    for (int64_t n : {1, 16, 17, 33, 79}) {
      for (int64_t k : {1, 2, 16, 31, 37}) {
        for (int flags = 0; flags < 4; ++flags) {
          cases.push_back({m, n, k, (flags & 1) != 0, (flags & 2) != 0,
                           k == 37 ? 0.25f : 1.0f,
                           n == 17 ? 1.0f : (n == 33 ? -0.5f : 0.0f)});
        }
      }
    }
  }
  for (int flags = 0; flags < 4; ++flags) {
    const bool a = (flags & 1) != 0, b = (flags & 2) != 0;
    cases.push_back({21, 35, 384, a, b});
    cases.push_back({21, 35, 385, a, b, 1.0f, 1.0f});
    cases.push_back({21, 35, 768, a, b});
    cases.push_back({18, 20, 769, a, b, 2.0f, 0.5f});
    cases.push_back({13, 20, 1535, a, b});
    cases.push_back({530, 40, 9, a, b});
    cases.push_back({530, 1030, 5, a, b, 1.0f, 1.0f});
    cases.push_back({1030, 530, 5, a, b});
  }
  return cases;
}

// A problem with factors of A and B and a result of C; strides are wider than
// the rows.
template <typename A, typename B, typename C>
class Product {
 public:
  explicit Product(const Case& c)
      : a_(Numbers<A>((c.a_transposed ? c.k : c.m) * AStride(c), 1)),
        b_(Numbers<B>((c.b_transposed ? c.n : c.k) * BStride(c), 2)),
        before_(Numbers<C>(c.m * (c.n + 2), 3)),
        c_(before_) {
    p_.m = c.m;
    p_.n = c.n;
    p_.k = c.k;
    p_.alpha = c.alpha;
    p_.beta = c.beta;
    p_.a_transposed = c.a_transposed;
    p_.b_transposed = c.b_transposed;
    p_.a = {a_.data(), AStride(c)};
    p_.b = {b_.data(), BStride(c)};
    p_.c = {c_.data(), c.n + 2};
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  const GemmProblem& problem() const { return p_; }
  std::vector<A>& a() { return a_; }
  std::vector<B>& b() { return b_; }
  std::vector<C>& result() { return c_; }

  // Checks every element, and the gaps between rows.
  void ExpectRight() const {
    const std::vector<double> a = Values(a_), b = Values(b_);
    for (int64_t i = 0; i < p_.m; ++i) {
      for (int64_t j = 0; j < p_.c.stride; ++j) {
        const double got = Value(c_[i * p_.c.stride + j]);
        const double old = Value(before_[i * p_.c.stride + j]);
        if (j >= p_.n) {
          ASSERT_EQ(got, old) << "beside row " << i;
          continue;
        }
        double sum = 0.0, size = 1.0;
        for (int64_t k = 0; k < p_.k; ++k) {
          const double term =
              a[p_.a_transposed ? k * p_.a.stride + i : i * p_.a.stride + k] *
              b[p_.b_transposed ? j * p_.b.stride + k : k * p_.b.stride + j];
          sum += term;
          size += std::abs(term);
        }
        double expected = p_.alpha * sum;
        if (p_.beta != 0.0f) expected += p_.beta * old;
        // A rounding to 16 bits, besides those of float32.
        const double rounding =
            sizeof(C) == 2 ? 1.01 * Epsilon<C>() * std::abs(expected) : 0.0;
        ASSERT_NEAR(got, expected, rounding + 5e-7 * size)
            << p_.m << " x " << p_.n << " x " << p_.k << " at " << i << ", "
            << j;
      }
    }
  }

 private:
  static int64_t AStride(const Case& c) {
    return (c.a_transposed ? c.m : c.k) + 3;
  }
  static int64_t BStride(const Case& c) {
    return (c.b_transposed ? c.k : c.n) + 5;
  }
  template <typename T>
  static std::vector<double> Values(const std::vector<T>& x) {
    std::vector<double> values;
    for (const T v : x) values.push_back(Value(v));
    return values;
  }
  template <typename T>
  static std::vector<T> Numbers(int64_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> value(-1.0, 1.0);
    std::vector<T> x(size);
    for (T& v : x) v = Make<T>(Nearest<T>(value(random)));
    return x;
  }

  std::vector<A> a_;
  std::vector<B> b_;
  std::vector<C> before_, c_;
  GemmProblem p_;
};

// What tables work in: NaN, so that nothing is read that wasn't written.
class WorkSpace {
 public:
  float* space() { return Aligned(space_); }
  float* sums() { return Aligned(sums_); }

 private:
  static float* Aligned(std::vector<float>& x) {
    return reinterpret_cast<float*>(
        (reinterpret_cast<uintptr_t>(x.data()) + 63) / 64 * 64);
  }
  std::vector<float> space_ =
      std::vector<float>(kGemmSpace + kGemmRead + 16, kNan);
  std::vector<float> sums_ =
      std::vector<float>(kGemmRounded * kGemmRounded + 16, kNan);
};

template <typename A, typename B, typename C>
void ExpectRight(const GemmKernels& table) {
  SCOPED_TRACE(table.name);
  WorkSpace memory;
  for (const Case& c : Cases()) {
    Product<A, B, C> product(c);
    table.run(product.problem(), 0, c.m, 0, c.n, memory.space(), memory.sums());
    product.ExpectRight();
    if (testing::Test::HasFatalFailure()) return;
  }
}

template <typename A, typename B, typename C>
void ExpectPartsMakeTheSameBits(const GemmKernels& table) {
  SCOPED_TRACE(table.name);
  WorkSpace memory;
  for (const Case& c : {Case{150, 70, 1700, true, true},
                        Case{150, 70, 1700, false, false, 1.0f, 1.0f}}) {
    Product<A, B, C> whole(c), parts(c);
    const auto run = [&](Product<A, B, C>& product, int64_t row,
                         int64_t row_end, int64_t column, int64_t column_end) {
      table.run(product.problem(), row, row_end, column, column_end,
                memory.space(), memory.sums());
    };
    run(whole, 0, 150, 0, 70);
    run(parts, 0, 32, 0, 70);
    run(parts, 32, 149, 0, 33);
    run(parts, 32, 149, 33, 70);
    run(parts, 149, 150, 0, 70);
    EXPECT_TRUE(SameBits(whole.result(), parts.result()));
  }
}

// As the public function is called.
inline void RunGemm(const GemmProblem& p) {
  Gemm(p.a_transposed   ? Transpose::kLeft
       : p.b_transposed ? Transpose::kRight
                        : Transpose::kNone,
       p.m, p.n, p.k, p.alpha, p.a, p.b, p.beta, p.c);
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_GEMM_GEMM_PRODUCTS_FOR_TEST_H_
