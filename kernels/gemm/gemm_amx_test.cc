// SPDX-License-Identifier: Apache-2.0
//
// Products in AMX tiles. The machine code is the trainer's; where the processor
// has no AMX, its instructions are emulated one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/gemm/amx_emulator.h"
#include "kernels/gemm/gemm_products.h"

namespace capstan::kernels {
namespace {

class GemmAmxTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!AmxEmulator::runs()) GTEST_SKIP() << "no AVX-512, or AMX is refused";
  }

 private:
  AmxEmulator emulator_;
};

TEST_F(GemmAmxTest, Bf16) { ExpectRight<Bf16, Bf16, Bf16>(kGemmAmx); }
TEST_F(GemmAmxTest, Bf16ToFloat) { ExpectRight<Bf16, Bf16, float>(kGemmAmx); }
TEST_F(GemmAmxTest, Bf16ToFp16) { ExpectRight<Bf16, Bf16, Fp16>(kGemmAmx); }
// Not in tiles.
TEST_F(GemmAmxTest, FloatTimesBf16) {
  ExpectRight<float, Bf16, Bf16>(kGemmAmx);
}

TEST_F(GemmAmxTest, PartsMakeTheSameBits) {
  ExpectPartsMakeTheSameBits<Bf16, Bf16, Bf16>(kGemmAmx);
  ExpectPartsMakeTheSameBits<Bf16, Bf16, float>(kGemmAmx);
}

// The sums of 32 terms at a time, each block of the inner dimension added to c.
std::vector<float> ByDefinition(const Product<Bf16, Bf16, float>& product) {
  const GemmProblem& p = product.problem();
  const auto* const a = static_cast<const Bf16*>(p.a.data);
  const auto* const b = static_cast<const Bf16*>(p.b.data);
  std::vector<float> c(p.m * p.n);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      AmxTile sum;
      sum.rows = 1;
      sum.bytes = 4;
      for (int64_t k = 0; k < p.k; k += 32) {
        AmxTile row, column;
        row.rows = 1;
        row.bytes = 64;
        column.rows = 16;
        column.bytes = 4;
        for (int64_t t = 0; t < std::min<int64_t>(32, p.k - k); ++t) {
          std::memcpy(row.data[0] + 2 * t, a + i * p.a.stride + k + t, 2);
          std::memcpy(column.data[t / 2] + 2 * (t % 2),
                      b + (k + t) * p.b.stride + j, 2);
        }
        MultiplyTiles(row, column, &sum);
      }
      std::memcpy(&c[i * p.n + j], sum.data[0], 4);
    }
  }
  return c;
}

// On a processor with AMX: it does what the emulator does.
TEST_F(GemmAmxTest, HasTheBitsOfTheDefinition) {
  for (const Case& c :
       {Case{16, 16, 32}, Case{37, 53, 75}, Case{64, 64, 999}}) {
    Product<Bf16, Bf16, float> product(c);
    // Some are subnormal, which counts as 0.
    for (size_t i = 0; i < product.a().size(); i += 7) product.a()[i].bits = 3;
    WorkSpace memory;
    kGemmAmx.run(product.problem(), 0, c.m, 0, c.n, memory.space(), nullptr);
    const std::vector<float> wanted = ByDefinition(product);
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        ASSERT_EQ(product.result()[i * (c.n + 2) + j], wanted[i * c.n + j])
            << i << ", " << j;
      }
    }
  }
}

TEST_F(GemmAmxTest, TilesAreUsedAndReleased) {
  if (!AmxEmulator::needed()) GTEST_SKIP() << "not emulated";
  Product<Bf16, Bf16, float> halves({64, 96, 64});
  Product<float, Bf16, float> mixed({64, 96, 64});
  WorkSpace memory;
  const int64_t before = AmxEmulator::products();
  kGemmAmx.run(halves.problem(), 0, 64, 0, 96, memory.space(), nullptr);
  // 4 x 6 tiles of c, two of the inner dimension.
  EXPECT_EQ(AmxEmulator::products() - before, 4 * 6 * 2);
  EXPECT_FALSE(AmxEmulator::in_use());
  kGemmAmx.run(mixed.problem(), 0, 64, 0, 96, memory.space(), nullptr);
  EXPECT_EQ(AmxEmulator::products() - before, 4 * 6 * 2);
}

int asked;
bool Granted() { return ++asked > 0; }
bool Refused() { return ++asked < 0; }

const GemmKernels* Choice(const char* wish, bool intel, bool pairs,
                          bool (*tiles)()) {
  return &ChooseForHalves({wish, intel, pairs, tiles});
}

TEST(ChooseForHalvesTest, TilesThenPairsThenFloats) {
  const GemmKernels* const floats = &kGemm.best();
  const GemmKernels* const pairs = &kGemmAvx512Bf16;
  // Sapphire Rapids; its kernel refuses; Emerald Rapids whose host hides AMX.
  EXPECT_EQ(Choice(nullptr, true, true, Granted), &kGemmAmx);
  EXPECT_EQ(Choice(nullptr, true, true, Refused), floats);
  // Zen 4; Zen 3; an AMD processor to come.
  EXPECT_EQ(Choice(nullptr, false, true, Refused), pairs);
  EXPECT_EQ(Choice(nullptr, false, false, Refused), floats);
  EXPECT_EQ(Choice(nullptr, false, true, Granted), &kGemmAmx);
}

TEST(ChooseForHalvesTest, AWishIsFollowedWhereItCanBe) {
  const GemmKernels* const floats = &kGemm.best();
  const GemmKernels* const pairs = &kGemmAvx512Bf16;
  EXPECT_EQ(Choice("amx", true, true, Granted), &kGemmAmx);
  EXPECT_EQ(Choice("amx", true, true, Refused), floats);
  EXPECT_EQ(Choice("amx", false, true, Refused), pairs);
  // The kernel isn't asked for what isn't wished.
  asked = 0;
  EXPECT_EQ(Choice("avx512bf16", true, true, Granted), pairs);
  EXPECT_EQ(Choice("float32", true, true, Granted), floats);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(Choice("avx512bf16", true, false, Refused), floats);
}

}  // namespace
}  // namespace capstan::kernels
