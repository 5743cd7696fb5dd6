// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adafactor.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/optimizer/normal_for_test.h"
#include "kernels/optimizer/peak_of_cpu_for_test.h"

namespace capstan::kernels {
namespace {

// Of `matrices` [rows, columns], or with rows 0 a vector.
AdafactorBuffers Buffers(int64_t matrices, int64_t rows, int64_t columns,
                         bool first_moment) {
  const int64_t n = matrices * (rows == 0 ? 1 : rows) * columns;
  AdafactorBuffers b;
  b.parameter = Normal(1, n, 0.3f);
  if (rows > 0) {
    b.rows = rows;
    b.columns = columns;
    b.row = at::zeros({matrices * rows});
    b.column = at::zeros({matrices * columns});
  } else {
    b.exp_avg_sq = at::zeros({n});
  }
  if (first_moment) b.exp_avg = at::zeros({n});
  return b;
}

AdafactorOptions Options(int64_t step) {
  AdafactorOptions o;
  o.step = step;
  o.learning_rate = 1e-2;
  o.gradient_scale = 0.25;
  o.weight_decay = 0.1;
  o.beta1 = 0.9;
  o.scale_parameter = step % 2 == 0;
  return o;
}

void ExpectClose(const AdafactorBuffers& a, const AdafactorBuffers& b) {
  EXPECT_TRUE(a.parameter.allclose(b.parameter, 1e-5, 1e-7));
  for (const auto& [x, y] :
       {std::make_pair(a.row, b.row), std::make_pair(a.column, b.column),
        std::make_pair(a.exp_avg_sq, b.exp_avg_sq),
        std::make_pair(a.exp_avg, b.exp_avg)}) {
    if (!x.defined()) continue;
    EXPECT_TRUE(x.allclose(y, 1e-5, 1e-7));
  }
}

// tests/golden compares with transformers; this one, the CPU's passes with the
// same formula in LibTorch's operators, at sizes that pieces don't divide.
TEST(AdafactorTest, IsLibTorchsOperators) {
  for (const auto& [matrices, rows, columns] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1, 37, 53},
                                                          {1, 3, 40000},
                                                          {1, 1, 700},
                                                          {3, 20, 30},
                                                          {1, 0, 70001},
                                                          {1, 0, 1}}) {
    for (const bool first_moment : {false, true}) {
      AdafactorBuffers mine = Buffers(matrices, rows, columns, first_moment);
      AdafactorBuffers theirs = Buffers(matrices, rows, columns, first_moment);
      for (int64_t step = 1; step <= 4; ++step) {
        mine.gradient = theirs.gradient =
            Normal(50 + step, mine.parameter.numel(), 2.0f);
        AdafactorStep(Options(step), mine);
        AdafactorByLibTorch(Options(step), theirs);
      }
      ExpectClose(mine, theirs);
      EXPECT_FALSE(
          mine.parameter.allclose(Normal(1, mine.parameter.numel(), 0.3f)));
    }
  }
}

TEST(AdafactorTest, BitsDoNotDependOnThreads) {
  AdafactorBuffers one = Buffers(1, 90, 20001, true);
  AdafactorBuffers three = Buffers(1, 90, 20001, true);
  one.gradient = three.gradient = Normal(9, one.parameter.numel(), 1.0f);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  AdafactorStep(Options(2), one);
  at::set_num_threads(3);
  AdafactorStep(Options(2), three);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.parameter, three.parameter));
  EXPECT_TRUE(at::equal(one.row, three.row));
  EXPECT_TRUE(at::equal(one.column, three.column));
}

TEST(AdafactorTest, ReadsAndWritesSixteenBits) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    AdafactorBuffers narrow = Buffers(1, 30, 40, false);
    AdafactorBuffers wide = Buffers(1, 30, 40, false);
    narrow.gradient = Normal(4, 1200, 1.0f).to(type);
    narrow.working = at::empty({1200}, type);
    wide.gradient = narrow.gradient.to(at::kFloat);
    AdafactorStep(Options(1), narrow);
    AdafactorStep(Options(1), wide);
    EXPECT_TRUE(at::equal(narrow.parameter, wide.parameter));
    EXPECT_TRUE(at::equal(narrow.working, wide.parameter.to(type)));
  }
}

TEST(AdafactorTest, ADeviceScaleThatIsNotFiniteSkips) {
  for (const bool by_libtorch : {false, true}) {
    AdafactorBuffers b = Buffers(1, 30, 40, true);
    b.gradient = Normal(4, 1200, 1.0f);
    b.device_scale = at::full({}, std::numeric_limits<float>::quiet_NaN());
    by_libtorch ? AdafactorByLibTorch(Options(1), b)
                : AdafactorStep(Options(1), b);
    const AdafactorBuffers before = Buffers(1, 30, 40, true);
    EXPECT_TRUE(at::equal(b.parameter, before.parameter));
    EXPECT_TRUE(at::equal(b.row, before.row));
    EXPECT_TRUE(at::equal(b.exp_avg, before.exp_avg));
  }
}

// What the plan allows for on GPUs, where the same operators run.
TEST(AdafactorTest, LibTorchsOperatorsHoldWhatIsPlanned) {
  for (const bool first_moment : {false, true}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool scaled : {false, true}) {
        AdafactorBuffers b = Buffers(1, 300, 400, first_moment);
        b.gradient = Normal(4, 120000, 1.0f).to(type);
        if (scaled) b.device_scale = at::full({}, 0.5f);
        const PeakOfCpu counted;
        AdafactorByLibTorch(Options(2), b);
        EXPECT_GT(counted.peak(), 8 * 120000);
        EXPECT_LE(counted.peak(), 16 * 120000);
      }
    }
  }
}

TEST(AdafactorTest, RejectsBuffersThatDoNotFit) {
  AdafactorBuffers b = Buffers(1, 30, 40, false);
  b.gradient = at::zeros({1199});
  EXPECT_THROW(AdafactorStep(Options(1), b), c10::Error);
  b.gradient = at::zeros({1200});
  b.rows = 29;
  EXPECT_THROW(AdafactorStep(Options(1), b), c10::Error);
}

}  // namespace
}  // namespace capstan::kernels
