// SPDX-License-Identifier: Apache-2.0
#include "base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace capstan {
namespace {

double Sum(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.Add(value);
  return sum.Value();
}

// Of all magnitudes, both signs.
std::vector<double> Wild(int count) {
  std::mt19937_64 random(1);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const double mantissa = std::uniform_real_distribution<>(-1, 1)(random);
    const int exponent = std::uniform_int_distribution<>(-1070, 1000)(random);
    values.push_back(std::ldexp(mantissa, exponent));
  }
  return values;
}

TEST(ExactSumTest, OneNumberIsItself) {
  for (const double value : Wild(1000)) EXPECT_EQ(Sum({value}), value);
  EXPECT_EQ(Sum({}), 0.0);
  EXPECT_EQ(Sum({std::numeric_limits<double>::denorm_min()}),
            std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(Sum({std::numeric_limits<double>::max()}),
            std::numeric_limits<double>::max());
}

TEST(ExactSumTest, NothingIsLost) {
  EXPECT_EQ(Sum({1e300, 1.0, -1e300, 1e-300, -1.0}), 1e-300);
  EXPECT_EQ(Sum({-3.0, 1.0}), -2.0);
  EXPECT_EQ(Sum({1.0, -1.0}), 0.0);
}

TEST(ExactSumTest, TheOrderDoesNotMatter) {
  std::vector<double> values = Wild(2000);
  const double want = Sum(values);
  for (int seed = 0; seed < 5; ++seed) {
    std::shuffle(values.begin(), values.end(), std::mt19937_64(seed));
    EXPECT_EQ(Sum(values), want);
    // Nor does who adds which.
    std::vector<double> numbers(ExactSum::kNumbers, 0.0);
    ExactSum merged;
    for (int part = 0; part < 4; ++part) {
      ExactSum sum;
      for (int i = part * 500; i < (part + 1) * 500; ++i) sum.Add(values[i]);
      merged.Add(sum);
      std::vector<double> saved(ExactSum::kNumbers);
      sum.Save(absl::MakeSpan(saved));
      for (size_t i = 0; i < saved.size(); ++i) numbers[i] += saved[i];
    }
    EXPECT_EQ(merged.Value(), want);
    EXPECT_EQ(ExactSum::Load(numbers).Value(), want);
  }
}

TEST(ExactSumTest, KeepsWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Sum({1.0, inf}), inf);
  EXPECT_TRUE(std::isnan(Sum({inf, -inf, 2.0})));
  EXPECT_TRUE(std::isnan(Sum({std::nan(""), 2.0})));
}

}  // namespace
}  // namespace capstan
