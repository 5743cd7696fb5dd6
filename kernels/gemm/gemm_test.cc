// SPDX-License-Identifier: Apache-2.0
//
// Compares each instruction set with sums in double precision, at sizes around
// those of tiles, panels and blocks.
#include "kernels/gemm/gemm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_products_for_test.h"

namespace capstan::kernels {
namespace {

using Floats = Product<float, float, float>;

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
  ExpectRight<float, float, float>(*kernels_);
}

TEST_P(GemmTest, BetaZeroForgetsWhatWasThere) {
  WorkSpace memory;
  Floats product({20, 40, 8});
  for (float& x : product.result()) x = kNan;
  kernels_->run(product.problem(), 0, 20, 0, 40, memory.space(),
                /*sums=*/nullptr);
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 40; ++j) {
      ASSERT_TRUE(
          std::isfinite(product.result()[i * product.problem().c.stride + j]));
    }
  }
}

TEST_P(GemmTest, PartsMakeTheSameBits) {
  ExpectPartsMakeTheSameBits<float, float, float>(*kernels_);
}

// Of a c that is made a part at a time, between two blocks of terms.
TEST_P(GemmTest, LargeResultsHaveTheBitsOfTheirParts) {
  for (const Case& c :
       {Case{500, 2300, 400}, Case{2300, 500, 400, true, true, 0.5f, 1.0f}}) {
    ASSERT_GT(c.m * c.n, kGemmKept);
    WorkSpace memory;
    Floats whole(c), parts(c);
    const GemmProblem &p = whole.problem(), &q = parts.problem();
    kernels_->run(p, 0, c.m, 0, c.n, memory.space(), /*sums=*/nullptr);
    kernels_->run(q, 0, c.m / 2, 0, c.n / 2, memory.space(), nullptr);
    kernels_->run(q, 0, c.m / 2, c.n / 2, c.n, memory.space(), nullptr);
    kernels_->run(q, c.m / 2, c.m, 0, c.n / 2, memory.space(), nullptr);
    kernels_->run(q, c.m / 2, c.m, c.n / 2, c.n, memory.space(), nullptr);
    EXPECT_TRUE(SameBits(whole.result(), parts.result()));
  }
}

INSTANTIATE_TEST_SUITE_P(EachInstructionSet, GemmTest, testing::Range(0, 3));

// One row is no distance from another; Intel's BLAS asks for one, and writes
// nothing if it is less than a row.
TEST(GemmChoiceTest, OneRowMayHaveAnyStride) {
  const std::vector<float> a(24, 0.5f), b(24 * 16, 2.0f);
  std::vector<float> c(16, kNan);
  Gemm(Transpose::kNone, 1, 16, 24, 1.0f, {a.data(), 1}, {b.data(), 16}, 0.0f,
       {c.data(), 1});
  for (const float x : c) EXPECT_EQ(x, 24.0f);
  Gemm(Transpose::kRight, 1, 1, 24, 1.0f, {a.data(), 1}, {b.data(), 1}, 0.0f,
       {c.data(), 1});
  EXPECT_EQ(c[0], 24.0f);
}

TEST(GemmChoiceTest, IsRightAndTheSameOnAnyNumberOfThreads) {
  for (const Case& c :
       std::vector<Case>{{300, 200, 100, false, true},
                         {100, 300, 100, true, false},
                         {64, 1, 7, false, false, 1.0f, 1.0f},
                         {5, 6, 0, false, false, 1.0f, 0.5f},
                         // Several blocks of terms.
                         {999, 96, 900, true, false, 0.3f},
                         {999, 96, 90, true, false, 0.3f, 0.7f}}) {
    Floats one(c), three(c);
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
