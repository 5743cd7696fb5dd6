// SPDX-License-Identifier: Apache-2.0
//
//     CAPSTAN_WITNESS_PRODUCTS=N    right products to check (default: 3,000)
#include "kernels/witness/product_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "kernels/gemm/gemm.h"
#include "kernels/witness/product_rows.h"

namespace capstan::kernels {
namespace {

using Random = std::mt19937_64;

// A matrix of any type, with a stride of its own.
struct Numbers {
  Numbers(int64_t rows, int64_t columns, NumberType type, Random* random,
          float mean, float spread)
      : rows(rows), columns(columns), type(type) {
    stride = columns + static_cast<int64_t>((*random)() % 5);
    bytes.resize(rows * stride * size());
    for (int64_t i = 0; i < rows * stride; i += 4) {
      uint64_t bits = (*random)();
      for (int64_t j = i; j < i + 4 && j < rows * stride; ++j, bits >>= 16) {
        const auto sum = static_cast<float>((bits & 0xff) + (bits >> 8 & 0xff));
        const float noise = static_cast<float>(bits & 0x3f) / 4096.0f;
        Set(j, mean + spread * ((sum - 255.0f) / 104.0f + noise));
      }
    }
  }
  int64_t size() const { return type == NumberType::kFloat ? 4 : 2; }
  void Set(int64_t i, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (type == NumberType::kFloat) {
      std::memcpy(&bytes[4 * i], &bits, 4);
    } else {  // bfloat16, cut off
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(&bytes[2 * i], &half, 2);
    }
  }
  float At(int64_t i) const {
    uint32_t bits = 0;
    std::memcpy(type == NumberType::kFloat ? reinterpret_cast<char*>(&bits)
                                           : reinterpret_cast<char*>(&bits) + 2,
                &bytes[size() * i], size());
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  ConstMatrix Const() const {
    ConstMatrix x;
    x.data = bytes.data();
    x.stride = stride;
    x.type = type;
    return x;
  }
  Matrix Mutable() {
    Matrix x;
    x.data = bytes.data();
    x.stride = stride;
    x.type = type;
    return x;
  }
  int64_t rows, columns;
  NumberType type;
  int64_t stride = 0;
  std::vector<char> bytes;
};

struct Product {
  Product(Random* random, bool half, int64_t most)
      : transpose(static_cast<Transpose>((*random)() % 3)),
        m(1 + (*random)() % most),
        n(1 + (*random)() % most),
        k(1 + (*random)() % most),
        mean((*random)() % 3 == 0 ? 1.0f : 0.0f),
        a(transpose == Transpose::kLeft ? k : m,
          transpose == Transpose::kLeft ? m : k, TypeOf(half), random, mean,
          1.0f),
        b(transpose == Transpose::kRight ? n : k,
          transpose == Transpose::kRight ? k : n, TypeOf(half), random, mean,
          0.1f),
        c(m, n, TypeOf(half && (*random)() % 2 == 0), random, 0.0f, 1.0f) {
    if ((*random)() % 3 == 0) beta = 1.0f;
    if ((*random)() % 4 == 0) alpha = 0.125f;
  }
  static NumberType TypeOf(bool half) {
    return half ? NumberType::kBf16 : NumberType::kFloat;
  }
  void Compute() {
    Gemm(transpose, m, n, k, alpha, a.Const(), b.Const(), beta, c.Mutable());
  }
  Transpose transpose;
  int64_t m, n, k;
  float mean, alpha = 1.0f, beta = 0.0f;
  Numbers a, b, c;
};

// Sets the checker, with or without what disturbs products, for a test.
class Scope {
 public:
  explicit Scope(ProductWitness* witness) { SetProductWitness(witness); }
  ~Scope() { SetProductWitness(nullptr); }
};

// Flips bits of c as often as it is made, up to `times`.
class Flipping final : public ProductWitness {
 public:
  explicit Flipping(ProductChecker* checker) : checker_(*checker) {}
  void Compute(const GemmProblem& problem,
               const std::function<void()>& compute) override {
    checker_.Compute(problem, [&] {
      compute();
      if (times-- > 0) flip(problem);
    });
  }
  int times = 0;
  std::function<void(const GemmProblem&)> flip;

 private:
  ProductChecker& checker_;
};

// A checker whose products can be disturbed, and what it has told.
struct Trial {
  explicit Trial(bool twice = false)
      : checker([this](const ProductFailure& f) { failures.push_back(f); },
                twice),
        flipping(&checker) {}
  std::vector<ProductFailure> failures;
  ProductChecker checker;
  Flipping flipping;
};

// Flips bit `bit` of c's number there.
std::function<void(const GemmProblem&)> BitFlip(int64_t row, int64_t column,
                                                int bit) {
  return [row, column, bit](const GemmProblem& p) {
    const int64_t bytes = BytesOf(p.c.type);
    char* const number =
        static_cast<char*>(p.c.data) + (row * p.c.stride + column) * bytes;
    number[bit / 8] ^= static_cast<char>(1 << bit % 8);
  };
}

TEST(ProductCheckerTest, RightProductsAreNoAlarm) {
  const char* const text = getenv("CAPSTAN_WITNESS_PRODUCTS");
  int64_t products = 3000;
  if (text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &products));
  }
  int64_t alarms = 0;
  ProductChecker checker([&](const ProductFailure&) { ++alarms; });
  checker.Measure();
  const Scope scope(&checker);
  Random random(1);
  for (int64_t i = 0; i < products; ++i) {
    const int64_t most = i % 100 == 0 ? 700 : 96;
    Product(&random, i % 2 == 0, most).Compute();
  }
  EXPECT_EQ(alarms, 0);
  EXPECT_EQ(checker.counts().products, products);
  // Even of the bound little is used up.
  EXPECT_LE(checker.counts().repeated, products / 1000);
  printf(
      "%ld products, %ld of them twice; the largest error, of its bound: "
      "%.2f\n",
      static_cast<long>(products), static_cast<long>(checker.counts().repeated),
      checker.largest_error());
}

TEST(ProductCheckerTest, AFlipIsMendedOrBelowRounding) {
  Trial trial;
  Random random(2);
  int mended[2] = {}, all[2] = {};
  for (int i = 0; i < 1000; ++i) {
    const bool half = i % 2 == 0;
    Product clean(&random, half, 96);
    Product flipped = clean;
    clean.Compute();
    const int64_t row = random() % clean.m, column = random() % clean.n;
    const auto bit = static_cast<int>(random() % (8 * clean.c.size()));
    trial.flipping.times = 1;
    trial.flipping.flip = BitFlip(row, column, bit);
    trial.failures.clear();
    {
      const Scope scope(&trial.flipping);
      flipped.Compute();
    }
    ++all[half];
    if (trial.failures.empty()) continue;
    ++mended[half];
    ASSERT_EQ(trial.failures.size(), 1);
    EXPECT_EQ(trial.failures[0].row, row);
    EXPECT_FALSE(trial.failures[0].cores.empty());
    // What it was added to is gone.
    EXPECT_EQ(trial.failures[0].sum_lost, clean.beta != 0.0f);
    EXPECT_NE(trial.failures[0].sum_lost, trial.failures[0].mended);
    if (!trial.failures[0].mended) continue;
    EXPECT_EQ(flipped.c.bytes, clean.c.bytes) << "bit " << bit;
  }
  // The others are of the lowest bits.
  EXPECT_GT(mended[0], all[0] / 2);
  EXPECT_GT(mended[1], all[1] / 4);
}

// Made twice, none is below anything, and what it was added to isn't lost.
TEST(ProductCheckerTest, MadeTwiceEveryFlipIsMended) {
  Trial trial(/*twice=*/true);
  Random random(12);
  for (int i = 0; i < 1000; ++i) {
    Product clean(&random, /*half=*/i % 2 == 0, 96);
    Product flipped = clean;
    clean.Compute();
    const int64_t row = random() % clean.m, column = random() % clean.n;
    const auto bit = static_cast<int>(random() % (8 * clean.c.size()));
    trial.flipping.times = i % 5 > 0 ? 1 : 0;
    trial.flipping.flip = BitFlip(row, column, bit);
    trial.failures.clear();
    {
      const Scope scope(&trial.flipping);
      flipped.Compute();
    }
    EXPECT_EQ(flipped.c.bytes, clean.c.bytes) << "bit " << bit;
    ASSERT_EQ(trial.failures.size(), i % 5 > 0 ? 1 : 0);
    if (trial.failures.empty()) continue;
    EXPECT_TRUE(trial.failures[0].mended);
    EXPECT_TRUE(trial.failures[0].by_bits);
    EXPECT_EQ(trial.failures[0].row, row);
  }
}

// Each making is another: by no two of them can c be told.
TEST(ProductCheckerTest, MadeTwiceWhatStaysWrongIsNotMended) {
  for (const float beta : {0.0f, 1.0f}) {
    Trial trial(/*twice=*/true);
    const Scope scope(&trial.flipping);
    Random random(13);
    Product product(&random, /*half=*/false, 96);
    product.beta = beta;
    trial.flipping.times = 100;
    float added = 1000.0f;
    trial.flipping.flip = [&added](const GemmProblem& p) {
      static_cast<float*>(p.c.data)[0] += added++;
    };
    product.Compute();
    ASSERT_EQ(trial.failures.size(), 1);
    EXPECT_FALSE(trial.failures[0].mended);
    EXPECT_TRUE(trial.failures[0].by_bits);
    EXPECT_EQ(trial.failures[0].attempts, 2);
  }
}

// A core that errs every other time, in the same way, has a majority of three.
TEST(ProductCheckerTest, MadeTwiceTheMajorityIsCheckedAsWell) {
  for (const float beta : {0.0f, 1.0f}) {
    Trial trial(/*twice=*/true);
    Random random(15);
    Product clean(&random, /*half=*/false, 96);
    clean.beta = beta;
    Product flipped = clean;
    clean.Compute();
    const Scope scope(&trial.flipping);
    trial.flipping.times = 3;
    int made = 0;
    trial.flipping.flip = [&made](const GemmProblem& p) {
      if (made++ % 2 == 0) static_cast<float*>(p.c.data)[0] = 1e6f;
    };
    flipped.Compute();
    ASSERT_EQ(trial.failures.size(), 1);
    EXPECT_FALSE(trial.failures[0].by_bits);
    EXPECT_EQ(trial.failures[0].mended, beta == 0.0f);
    EXPECT_EQ(trial.failures[0].sum_lost, beta != 0.0f);
    if (beta == 0.0f) {
      EXPECT_EQ(flipped.c.bytes, clean.c.bytes);
    }
  }
}

// The same wrong bits each time: the check by sums is still made.
TEST(ProductCheckerTest, MadeTwiceItIsCheckedAsWell) {
  int64_t found = 0;
  ProductChecker checker([&](const ProductFailure&) { ++found; },
                         /*twice=*/true);
  Flipping flipping(&checker);
  const Scope scope(&flipping);
  Random random(14);
  Product product(&random, /*half=*/false, 96);
  flipping.times = 100;
  flipping.flip = [](const GemmProblem& p) {
    static_cast<float*>(p.c.data)[0] = 1e6f;
  };
  product.Compute();
  EXPECT_EQ(found, 1);
}

// Of the highest bits none gets through.
TEST(ProductCheckerTest, AnExponentsFlipIsAlwaysFound) {
  int64_t found = 0;
  ProductChecker checker([&](const ProductFailure& failure) {
    if (failure.mended || failure.sum_lost) ++found;
  });
  Flipping flipping(&checker);
  const Scope scope(&flipping);
  Random random(3);
  constexpr int kProducts = 500;
  for (int i = 0; i < kProducts; ++i) {
    Product product(&random, /*half=*/false, 96);
    flipping.times = 1;
    flipping.flip = [&](const GemmProblem& p) {
      static_cast<uint8_t*>(p.c.data)[3] ^= 0x40;  // the highest but the sign
    };
    product.Compute();
  }
  EXPECT_EQ(found, kProducts);
}

TEST(ProductCheckerTest, WhatStaysWrongIsNotMended) {
  Trial trial;
  const Scope scope(&trial.flipping);
  Random random(4);
  Product product(&random, false, 96);
  product.beta = 0.0f;
  trial.flipping.times = 100;
  trial.flipping.flip = [](const GemmProblem& p) {
    static_cast<float*>(p.c.data)[0] += 1000.0f;
  };
  product.Compute();
  ASSERT_EQ(trial.failures.size(), 1);
  EXPECT_FALSE(trial.failures[0].mended);
  EXPECT_FALSE(trial.failures[0].weight_changed);
  EXPECT_EQ(trial.failures[0].attempts, 2);
}

TEST(ProductCheckerTest, AWeightThatChangesWithinAStepIsSeen) {
  Trial trial;
  const Scope scope(&trial.checker);
  Random random(5);
  Product product(&random, false, 96);
  product.beta = 0.0f;
  trial.checker.Remember(product.b.bytes.data(),
                         static_cast<int64_t>(product.b.bytes.size()));
  product.Compute();
  product.b.Set(0, 1e4f);
  product.Compute();
  ASSERT_EQ(trial.failures.size(), 1);
  EXPECT_TRUE(trial.failures[0].weight_changed);
  // An update.
  trial.failures.clear();
  trial.checker.Forget();
  product.Compute();
  EXPECT_TRUE(trial.failures.empty());
}

// A core that errs the same way each time.
TEST(ProductCheckerTest, ASumThatStaysWrongIsLost) {
  Trial trial;
  const Scope scope(&trial.flipping);
  Random random(7);
  Product product(&random, false, 96);
  product.beta = 1.0f;
  trial.flipping.times = 100;
  trial.flipping.flip = [](const GemmProblem& p) {
    static_cast<float*>(p.c.data)[0] += 1000.0f;
  };
  product.Compute();
  ASSERT_EQ(trial.failures.size(), 1);
  EXPECT_TRUE(trial.failures[0].sum_lost);
  EXPECT_FALSE(trial.failures[0].mended);
}

TEST(ProductCheckerTest, AWeightThatChangesBeforeASumIsSeen) {
  Trial trial;
  const Scope scope(&trial.checker);
  Random random(8);
  Product product(&random, false, 96);
  product.beta = 1.0f;
  trial.checker.Remember(product.b.bytes.data(),
                         static_cast<int64_t>(product.b.bytes.size()));
  product.Compute();
  product.b.Set(0, 1e4f);
  product.Compute();
  ASSERT_EQ(trial.failures.size(), 1);
  EXPECT_TRUE(trial.failures[0].weight_changed);
}

// Their squares are 0 in float32, and beyond 1e-38 so are their products.
TEST(ProductCheckerTest, TinyNumbersAreNoAlarm) {
  int64_t alarms = 0;
  ProductChecker checker([&](const ProductFailure&) { ++alarms; });
  const Scope scope(&checker);
  Random random(9);
  for (int i = 0; i < 400; ++i) {
    Product product(&random, /*half=*/i % 2 == 0, 96);
    const float scale = std::ldexp(1.0f, -60 - i % 80);
    for (Numbers* const x : {&product.a, &product.c}) {
      for (int64_t j = 0; j < x->rows * x->stride; ++j) {
        x->Set(j, x->At(j) * scale);
      }
    }
    product.Compute();
  }
  EXPECT_EQ(alarms, 0);
  EXPECT_EQ(checker.counts().repeated, 0);
}

// A sum of large numbers, whose squares overflow, and one that overflows.
TEST(ProductCheckerTest, SumsThatOverflowAreNoAlarm) {
  int64_t alarms = 0;
  ProductChecker checker([&](const ProductFailure&) { ++alarms; });
  Flipping flipping(&checker);
  const Scope scope(&flipping);
  Random random(10);
  for (const float x : {1e19f, 1e20f, 1e30f, 3e38f}) {
    for (const bool half : {false, true}) {
      Product product(&random, half, 96);
      product.beta = 1.0f;
      product.c.Set(0, x);
      product.Compute();
      EXPECT_EQ(alarms, 0) << x;
      // But a flip there is one.
      flipping.times = x < 1e38f ? 1 : 0;
      flipping.flip = [](const GemmProblem& p) {
        static_cast<uint8_t*>(
            p.c.data)[p.c.type == NumberType::kFloat ? 2 : 0] ^= 0x40;
      };
      if (x < 1e38f) product.Compute();
      EXPECT_EQ(alarms, x < 1e38f ? 1 : 0) << x;
      alarms = 0;
    }
  }
}

// Two equal errors of a row cancel each other for half of the vectors.
TEST(ProductCheckerTest, EachRoundHasAnotherVector) {
  int64_t found = 0;
  ProductChecker checker([&](const ProductFailure&) { ++found; });
  Flipping flipping(&checker);
  const Scope scope(&flipping);
  Random random(11);
  flipping.flip = [](const GemmProblem& p) {
    static_cast<float*>(p.c.data)[0] += 1000.0f;
    static_cast<float*>(p.c.data)[1] += 1000.0f;
  };
  constexpr int kRounds = 200;
  for (int i = 0; i < kRounds; ++i) {
    Product product(&random, false, 96);
    while (product.n < 2) product = Product(&random, false, 96);
    product.beta = 0.0f;
    flipping.times = 1;
    product.Compute();
    checker.Forget();
  }
  EXPECT_GT(found, kRounds / 4);
  EXPECT_LT(found, 3 * kRounds / 4);
}

// Overflow is a step's business.
TEST(ProductCheckerTest, InfinitiesAndNansAreNoAlarm) {
  int64_t alarms = 0;
  ProductChecker checker([&](const ProductFailure&) { ++alarms; });
  const Scope scope(&checker);
  Random random(6);
  for (const float x : {INFINITY, -INFINITY, NAN, 1e38f}) {
    Product product(&random, false, 96);
    product.a.Set(0, x);
    product.Compute();
  }
  EXPECT_EQ(alarms, 0);
}

}  // namespace
}  // namespace capstan::kernels
