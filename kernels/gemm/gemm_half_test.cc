// SPDX-License-Identifier: Apache-2.0
//
// Products of 16-bit matrices: each table against sums in double precision, at
// sizes around those of tiles, panels, blocks and pairs.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/gemm/gemm_products_for_test.h"

namespace capstan::kernels {
namespace {

// All that this processor can run, but the plain one.
std::vector<const GemmKernels*> Tables() {
  const GemmKernels* sets[3];
  const int count = kGemm.Runnable(sets);
  std::vector<const GemmKernels*> tables;
  for (int i = 0; i < count; ++i) {
    if (sets[i]->run != nullptr) tables.push_back(sets[i]);
  }
#ifdef __x86_64__
  if (HasBf16Products()) tables.push_back(&kGemmAvx512Bf16);
  if (HasAmxTiles()) tables.push_back(&kGemmAmx);
#endif
  return tables;
}

template <typename A, typename B, typename C>
void ExpectRightInEachTable() {
  for (const GemmKernels* table : Tables()) ExpectRight<A, B, C>(*table);
}

TEST(GemmHalfTest, Bf16) { ExpectRightInEachTable<Bf16, Bf16, Bf16>(); }
TEST(GemmHalfTest, Fp16) { ExpectRightInEachTable<Fp16, Fp16, Fp16>(); }
TEST(GemmHalfTest, Bf16ToFloat) { ExpectRightInEachTable<Bf16, Bf16, float>(); }
TEST(GemmHalfTest, Fp16ToFloat) { ExpectRightInEachTable<Fp16, Fp16, float>(); }
TEST(GemmHalfTest, FloatTimesBf16) {
  ExpectRightInEachTable<float, Bf16, Bf16>();
}
TEST(GemmHalfTest, Bf16TimesFloat) {
  ExpectRightInEachTable<Bf16, float, float>();
}

TEST(GemmHalfTest, PartsMakeTheSameBits) {
  for (const GemmKernels* table : Tables()) {
    ExpectPartsMakeTheSameBits<Bf16, Bf16, Bf16>(*table);
    ExpectPartsMakeTheSameBits<Bf16, Bf16, float>(*table);
  }
}

// Two ranks' gradients, added, are one rank's that accumulates: what c was is
// added to the product, not term by term.
TEST(GemmHalfTest, WhatCWasIsAddedToTheProduct) {
  WorkSpace memory;
  for (const GemmKernels* table : Tables()) {
    SCOPED_TRACE(table->name);
    Product<Bf16, Bf16, float> product({64, 70, 300, true});
    Product<Bf16, Bf16, float> sum({64, 70, 300, true, false, 1.0f, 1.0f});
    const std::vector<float> before = sum.result();
    for (const GemmProblem& p : {product.problem(), sum.problem()}) {
      table->run(p, 0, 64, 0, 70, memory.space(), memory.sums());
    }
    for (int64_t i = 0; i < 64 * 72; ++i) {
      if (i % 72 >= 70) continue;
      ASSERT_EQ(sum.result()[i], product.result()[i] + before[i]) << i;
    }
  }
}

// Where panels are converted, a product has the bits of float32's.
TEST(GemmHalfTest, ConvertedPanelsAreFloats) {
  WorkSpace memory;
  const Case c = {50, 70, 900};
  const GemmKernels* const table = &kGemm.best();
  if (table->run == nullptr) GTEST_SKIP() << "the BLAS is used";
  Product<Bf16, Bf16, float> half(c);
  std::vector<float> a, b, out(50 * 70);
  const auto widen = [](const ConstMatrix& x, int64_t rows) {
    std::vector<float> wide(rows * x.stride);
    for (size_t i = 0; i < wide.size(); ++i) {
      wide[i] = static_cast<float>(Value(static_cast<const Bf16*>(x.data)[i]));
    }
    return wide;
  };
  a = widen(half.problem().a, 50);
  b = widen(half.problem().b, 900);
  GemmProblem wide = half.problem();
  wide.a = {a.data(), wide.a.stride};
  wide.b = {b.data(), wide.b.stride};
  wide.c = {out.data(), 70};
  table->run(half.problem(), 0, 50, 0, 70, memory.space(), memory.sums());
  table->run(wide, 0, 50, 0, 70, memory.space(), nullptr);
  for (int64_t i = 0; i < 50; ++i) {
    for (int64_t j = 0; j < 70; ++j) {
      ASSERT_EQ(out[i * 70 + j], half.result()[i * 72 + j]);
    }
  }
}

template <typename T>
void ExpectChoiceIsRight() {
  for (const Case& c : std::vector<Case>{{300, 200, 100, false, true},
                                         {100, 300, 100, true, false},
                                         {64, 1, 7, false, false, 1.0f, 1.0f},
                                         {5, 6, 0, false, false, 1.0f, 0.5f}}) {
    Product<T, T, T> one(c), three(c);
    at::set_num_threads(1);
    RunGemm(one.problem());
    at::set_num_threads(3);
    RunGemm(three.problem());
    one.ExpectRight();
    three.ExpectRight();
    if (kGemm.best().run != nullptr) {
      EXPECT_TRUE(SameBits(one.result(), three.result()));
    }
  }
}

TEST(GemmHalfChoiceTest, IsRightAndTheSameOnAnyNumberOfThreads) {
  ExpectChoiceIsRight<Bf16>();
  ExpectChoiceIsRight<Fp16>();
}

int asked;
bool Granted() { return ++asked > 0; }
bool Refused() { return ++asked < 0; }

TEST(GemmHalfChoiceTest, TilesThenPairsThenFloats) {
  if (kGemm.best().run == nullptr) GTEST_SKIP() << "the BLAS is used";
  const auto choice = [](const char* wish, bool intel, bool pairs,
                         bool (*tiles)()) {
    return std::string(ChooseForHalves(wish, intel, pairs, tiles).name);
  };
  const std::string floats = kGemm.best().name;
  // Sapphire Rapids; where its kernel refuses; Zen 4; Zen 3; an AMD processor
  // to come.
  EXPECT_EQ(choice(nullptr, true, true, Granted), "amx");
  EXPECT_EQ(choice(nullptr, true, true, Refused), floats);
  EXPECT_EQ(choice(nullptr, false, true, Refused), "avx512bf16");
  EXPECT_EQ(choice(nullptr, false, false, Refused), floats);
  EXPECT_EQ(choice(nullptr, false, true, Granted), "amx");
  // A wish is followed where it can be.
  EXPECT_EQ(choice("amx", true, true, Granted), "amx");
  EXPECT_EQ(choice("amx", true, true, Refused), floats);
  EXPECT_EQ(choice("amx", false, true, Refused), "avx512bf16");
  EXPECT_EQ(choice("avx512bf16", true, false, Refused), floats);
  // The kernel isn't asked for what isn't wished.
  asked = 0;
  EXPECT_EQ(choice("avx512bf16", true, true, Granted), "avx512bf16");
  EXPECT_EQ(choice("float32", false, true, Granted), floats);
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace capstan::kernels
