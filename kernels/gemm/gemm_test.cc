// SPDX-License-Identifier: Apache-2.0
//
// Compares each instruction set with sums in double precision, at sizes around
// those of tiles, panels and blocks.
#include "kernels/gemm/gemm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace capstan::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t m, n, k;
  bool a_transposed = false;
  bool b_transposed = false;
  float alpha = 1.0f;
  float beta = 0.0f;
};

// A problem with its memory; strides are wider than the rows.
class Product {
 public:
  explicit Product(const Case& c) : case_(c) {
    std::mt19937 random(static_cast<unsigned>(c.m * 31 + c.n * 7 + c.k));
    std::uniform_real_distribution<float> value(-1.0f, 1.0f);
    const auto fill = [&](std::vector<float>* x, int64_t size) {
      x->resize(size);
      for (float& v : *x) v = value(random);
    };
    p_.m = c.m;
    p_.n = c.n;
    p_.k = c.k;
    p_.alpha = c.alpha;
    p_.beta = c.beta;
    p_.a_transposed = c.a_transposed;
    p_.b_transposed = c.b_transposed;
    p_.a.stride = (c.a_transposed ? c.m : c.k) + 3;
    p_.b.stride = (c.b_transposed ? c.k : c.n) + 5;
    p_.c.stride = c.n + 2;
    fill(&a_, (c.a_transposed ? c.k : c.m) * p_.a.stride);
    fill(&b_, (c.b_transposed ? c.n : c.k) * p_.b.stride);
    fill(&before_, c.m * p_.c.stride);
    Reset();
  }

  void Reset() {
    c_ = before_;
    p_.a.data = a_.data();
    p_.b.data = b_.data();
    p_.c.data = c_.data();
  }
  const GemmProblem& problem() const { return p_; }
  const std::vector<float>& result() const { return c_; }
  std::vector<float>& before() { return before_; }

  // Checks every element, and the gaps between rows.
  void ExpectRight() const {
    for (int64_t i = 0; i < p_.m; ++i) {
      for (int64_t j = 0; j < p_.c.stride; ++j) {
        const float got = c_[i * p_.c.stride + j];
        const float old = before_[i * p_.c.stride + j];
        if (j >= p_.n) {
          ASSERT_EQ(got, old) << "beside row " << i;
          continue;
        }
        double sum = 0.0, size = 1.0;
        for (int64_t k = 0; k < p_.k; ++k) {
          const double term =
              static_cast<double>(p_.a_transposed ? a_[k * p_.a.stride + i]
                                                  : a_[i * p_.a.stride + k]) *
              (p_.b_transposed ? b_[j * p_.b.stride + k]
                               : b_[k * p_.b.stride + j]);
          sum += term;
          size += std::abs(term);
        }
        double expected = p_.alpha * sum;
        if (p_.beta != 0.0f) expected += p_.beta * old;
        ASSERT_NEAR(got, expected, 5e-7 * size)
            << p_.m << " x " << p_.n << " x " << p_.k << " at " << i << ", "
            << j;
      }
    }
  }

 private:
  const Case case_;
  std::vector<float> a_, b_, before_, c_;
  GemmProblem p_;
};

std::vector<float> MakeSpace() {
  return std::vector<float>(kGemmSpace + 16, kNan);
}

float* Aligned(std::vector<float>& space) {
  return reinterpret_cast<float*>(
      (reinterpret_cast<uintptr_t>(space.data()) + 63) / 64 * 64);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int64_t m : {1, 13, 14, 15, 47}) {
    for (int64_t n : {1, 15, 16, 17, 33, 79}) {
      for (int64_t k : {1, 16, 37}) {
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
    cases.push_back({18, 20, 1000, a, b, 2.0f, 0.5f});
    cases.push_back({1003, 1100, 5, a, b});
    cases.push_back({1100, 1003, 5, a, b});
    cases.push_back({530, 40, 9, a, b});
  }
  return cases;
}

class GemmTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const GemmKernels* sets[3];
    if (GetParam() >= kGemm.Runnable(sets)) {
      GTEST_SKIP() << "not on this processor";
    }
    kernels_ = sets[GetParam()];
    if (kernels_->run == nullptr) GTEST_SKIP() << "the BLAS is used";
  }
  const GemmKernels* kernels_ = nullptr;
};

TEST_P(GemmTest, EqualsSumsInDouble) {
  std::vector<float> space = MakeSpace();
  for (const Case& c : Cases()) {
    Product product(c);
    kernels_->run(product.problem(), 0, c.m, 0, c.n, Aligned(space));
    product.ExpectRight();
    if (HasFatalFailure()) return;
  }
}

TEST_P(GemmTest, BetaZeroForgetsWhatWasThere) {
  std::vector<float> space = MakeSpace();
  Product product({20, 40, 8});
  for (float& x : product.before()) x = kNan;
  product.Reset();
  kernels_->run(product.problem(), 0, 20, 0, 40, Aligned(space));
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 40; ++j) {
      ASSERT_TRUE(
          std::isfinite(product.result()[i * product.problem().c.stride + j]));
    }
  }
}

TEST_P(GemmTest, PartsMakeTheSameBits) {
  std::vector<float> space = MakeSpace();
  Product whole({150, 70, 900, true, true});
  kernels_->run(whole.problem(), 0, 150, 0, 70, Aligned(space));
  Product parts({150, 70, 900, true, true});
  kernels_->run(parts.problem(), 0, 32, 0, 70, Aligned(space));
  kernels_->run(parts.problem(), 32, 150, 0, 33, Aligned(space));
  kernels_->run(parts.problem(), 32, 150, 33, 70, Aligned(space));
  EXPECT_EQ(whole.result(), parts.result());
}

INSTANTIATE_TEST_SUITE_P(EachInstructionSet, GemmTest, testing::Range(0, 2));

void RunGemm(const GemmProblem& p) {
  Gemm(p.a_transposed   ? Transpose::kLeft
       : p.b_transposed ? Transpose::kRight
                        : Transpose::kNone,
       p.m, p.n, p.k, p.alpha, p.a, p.b, p.beta, p.c);
}

TEST(GemmChoiceTest, IsRightAndTheSameOnAnyNumberOfThreads) {
  for (const Case& c : std::vector<Case>{{300, 200, 100, false, true},
                                         {100, 300, 100, true, false},
                                         {64, 1, 7, false, false, 1.0f, 1.0f},
                                         {5, 6, 0, false, false, 1.0f, 0.5f}}) {
    Product one(c), three(c);
    at::set_num_threads(1);
    RunGemm(one.problem());
    one.ExpectRight();
    at::set_num_threads(3);
    RunGemm(three.problem());
    if (std::string(GemmName()) != "blas") {
      EXPECT_EQ(one.result(), three.result());
    } else {
      three.ExpectRight();
    }
  }
}

}  // namespace
}  // namespace capstan::kernels
