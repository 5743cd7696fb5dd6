// SPDX-License-Identifier: Apache-2.0
//
// Numbers, shadows and messages of the interpreter, without nvcc;
// planted_test.cc runs kernels.
#include "testing/ptx/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "testing/ptx/operations.h"

namespace capstan::ptx {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
uint64_t Bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}
float Float(uint64_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The bits that an instruction makes of its operands' in lane 5.
template <typename... T>
uint64_t Do(const std::string& opcode, T... operands) {
  const Operation* operation = FindOperation(opcode);
  if (operation == nullptr) {
    ADD_FAILURE() << opcode << " is unknown";
    return 0;
  }
  Registers registers;
  registers.values.resize(4);
  registers.predicates.resize(1);
  Instruction instruction;
  instruction.to[0] = 0;
  int count = 0;
  for (const uint64_t bits : {Bits(operands)...}) {
    registers.values[++count][5] = bits;
    instruction.from[count - 1] = count;
  }
  operation->execute(instruction, registers, 1u << 5);
  return operation->operands[0] == 'p' ? registers.predicates[0] >> 5
                                       : registers.values[0][5];
}

TEST(Operations, RoundDownAsTheProcessorDoes) {
  std::mt19937 random(1);
  std::vector<float> values = {0.0f,  -0.0f,  1.0f,      -1.0f,      1e-45f,
                               3e38f, -3e38f, kInfinity, 12582912.0f};
  for (int i = 0; i < 300; ++i) {
    values.push_back(
        Float((random() & 0x807fffff) | (127 - 12 + i % 24) << 23));
  }
  for (size_t i = 0; i < 200000; ++i) {
    const float a = values[random() % values.size()];
    const float b = values[random() % values.size()];
    const float c = values[random() % values.size()];
    std::fesetround(FE_DOWNWARD);
    const volatile float expected = std::fma(a, b, c);
    std::fesetround(FE_TONEAREST);
    if (std::isnan(expected)) continue;
    ASSERT_EQ(Do("fma.rm.f32", a, b, c), Bits(static_cast<float>(expected)))
        << a << " * " << b << " + " << c;
  }
}

TEST(Operations, OfFloats) {
  EXPECT_EQ(Do("add.f32", kInfinity, -kInfinity), 0x7fffffff);
  EXPECT_EQ(Float(Do("ex2.approx.ftz.f32", -3.0f)), 0.125f);
  EXPECT_EQ(Float(Do("ex2.approx.ftz.f32", -149.0f)), 0.0f);
  EXPECT_EQ(Do("max.f32", -0.0f, 0.0f), Bits(0.0f));
  EXPECT_EQ(Float(Do("max.f32", kNan, 2.0f)), 2.0f);
  EXPECT_EQ(Float(Do("max.f32", 2.0f, kNan)), 2.0f);
  EXPECT_EQ(Float(Do("cvt.sat.f32.f32", kNan)), 0.0f);
  EXPECT_EQ(Float(Do("cvt.sat.f32.f32", 2.0f)), 1.0f);
  EXPECT_EQ(Do("cvt.rzi.s32.f32", -1.9f), Bits(int32_t{-1}));
  EXPECT_EQ(Do("cvt.rzi.s32.f32", 3e9f), Bits(int32_t{2147483647}));
  EXPECT_EQ(Do("cvt.rzi.s32.f32", kNan), 0);
  // Ties to even.
  EXPECT_EQ(Do("cvt.rn.bf16.f32", Float(0x3f808000)), 0x3f80);
  EXPECT_EQ(Do("cvt.rn.bf16.f32", Float(0x3f818000)), 0x3f82);
  EXPECT_EQ(Do("cvt.rn.bf16.f32", kNan), 0x7fff);
  EXPECT_EQ(Do("cvt.rn.f16.f32", 65520.0f), 0x7c00);
  EXPECT_EQ(Do("cvt.rn.f16.f32", 65519.0f), 0x7bff);
  EXPECT_EQ(Do("cvt.rn.satfinite.e4m3x2.f32", 1.0625f, -0x1p-9f), 0x3881);
  EXPECT_EQ(Do("cvt.rn.satfinite.e4m3x2.f32", 500.0f, kNan), 0x7e7f);
  EXPECT_EQ(Do("cvt.rn.satfinite.e5m2x2.f32", 1.375f, -1e9f), 0x3efb);
  EXPECT_EQ(Do("cvt.rn.f32.s64", (int64_t{1} << 24) + 1), Bits(16777216.0f));
}

TEST(Operations, OfIntegers) {
  EXPECT_EQ(Do("sub.s16", int16_t{0}, int16_t{1}), 0xffff);
  EXPECT_EQ(Do("mul.lo.s32", int32_t{-3}, int32_t{1} << 30), 0x40000000);
  EXPECT_EQ(Do("mul.wide.s32", int32_t{-3}, int32_t{5}), Bits(int64_t{-15}));
  EXPECT_EQ(Do("mul.wide.u32", uint32_t{0xffffffff}, uint32_t{2}), 0x1fffffffe);
  EXPECT_EQ(Do("div.s32", int32_t{-7}, int32_t{2}), Bits(int32_t{-3}));
  EXPECT_EQ(Do("rem.s64", int64_t{-7}, int64_t{2}), Bits(int64_t{-1}));
  EXPECT_EQ(Do("div.u32", uint32_t{7}, uint32_t{0}), 0xffffffff);
  EXPECT_EQ(Do("shl.b32", uint32_t{1}, uint32_t{32}), 0);
  EXPECT_EQ(Do("shr.u64", ~uint64_t{0}, uint32_t{64}), 0);
  EXPECT_EQ(Do("shr.s32", int32_t{-8}, uint32_t{40}), 0xffffffff);
  EXPECT_EQ(Do("not.b16", uint16_t{1}), 0xfffe);
  EXPECT_EQ(Do("bfi.b32", 0xabcdu, 0x12345678u, 8u, 12u), 0x123bcd78u);
  EXPECT_EQ(Do("bfi.b32", 5u, 7u, 3u, 29u), 47u);
  EXPECT_EQ(Do("cvt.u16.u32", uint32_t{0x12345}), 0x2345);
}

TEST(Operations, OfComparisons) {
  EXPECT_EQ(Do("setp.lt.s32", int32_t{-1}, int32_t{1}), 1);
  EXPECT_EQ(Do("setp.lt.u32", int32_t{-1}, int32_t{1}), 0);
  EXPECT_EQ(Do("setp.ne.f32", kNan, 1.0f), 0);
  EXPECT_EQ(Do("setp.geu.f32", kNan, 1.0f), 1);
}

// Another lane isn't written.
TEST(Operations, TouchOnlyTheirLanes) {
  Registers registers;
  registers.values.resize(1);
  registers.values[0].fill(1);
  Instruction instruction;
  instruction.to[0] = instruction.from[0] = instruction.from[1] = 0;
  FindOperation("add.s32")->execute(instruction, registers, 0x80000001);
  for (int lane = 0; lane < kWarp; ++lane) {
    EXPECT_EQ(registers.values[0][lane], lane == 0 || lane == 31 ? 2 : 1);
  }
}

class ShadowTest : public ::testing::Test {
 protected:
  std::string Read(int at, int thread) { return Touch(at, thread, false); }
  std::string Write(int at, int thread) { return Touch(at, thread, true); }
  std::string Touch(int at, int thread, bool writes) {
    return shadow_.Touch(at, 1, writes, {clock_, thread, shuffle_});
  }
  void Shuffle() { shuffle_ = ++clock_.now; }
  void Barrier() { clock_.barrier = ++clock_.now; }
  void Block() { clock_.block = clock_.barrier = shuffle_ = ++clock_.now; }
  void Launch() {
    clock_.launch = ++clock_.now;
    Block();
  }

  Shadow shadow_{8};
  Clock clock_;
  uint32_t shuffle_ = 0;
};

TEST_F(ShadowTest, KnowsWhatABarrierOrders) {
  Launch();
  EXPECT_EQ(Write(0, 1), "");
  EXPECT_EQ(Read(0, 1), "");
  EXPECT_THAT(Read(0, 2), HasSubstr("races with thread 1, which has written"));
  EXPECT_THAT(Write(0, 2), HasSubstr("races with thread 1, which has written"));
  Barrier();
  EXPECT_EQ(Read(0, 2), "");
  EXPECT_THAT(Write(0, 1), HasSubstr("races with thread 2, which has read"));
  EXPECT_EQ(Read(0, 3), "");
  EXPECT_THAT(Write(0, 3), HasSubstr("races with other threads of the block"));
  EXPECT_EQ(Write(1, 3), "");
  Barrier();
  EXPECT_EQ(Write(0, 3), "");
}

TEST_F(ShadowTest, KnowsWhatAShuffleOrders) {
  Launch();
  EXPECT_EQ(Read(0, 1), "");
  EXPECT_EQ(Read(0, 2), "");
  EXPECT_EQ(Write(1, 1), "");
  EXPECT_EQ(Read(2, 1), "");
  EXPECT_EQ(Read(2, 40), "");
  Shuffle();
  EXPECT_EQ(Write(0, 31), "");                      // what its warp has read
  EXPECT_THAT(Read(1, 2), HasSubstr("written"));    // a write isn't ordered
  EXPECT_THAT(Write(2, 2), HasSubstr("has read"));  // nor another warp's read
}

TEST_F(ShadowTest, KnowsBlocksAndLaunches) {
  Launch();
  EXPECT_EQ(Read(0, 1), "");
  EXPECT_EQ(Write(1, 1), "");
  Block();
  EXPECT_THAT(Read(1, 1), HasSubstr("another block, which has written"));
  EXPECT_EQ(Read(0, 1), "");
  Barrier();
  EXPECT_EQ(Read(0, 1), "");
  EXPECT_THAT(Write(0, 1), HasSubstr("another block, which has read"));
  Launch();
  EXPECT_EQ(Write(0, 1), "");
  EXPECT_EQ(Write(1, 2), "");
}

std::string Loaded(const std::string& body) {
  Interpreter interpreter;
  return std::string(
      interpreter
          .Load("x.ptx", absl::StrCat(".version 9.0\n.target sm_90\n"
                                      ".entry K(.param .u64 K_param_0)\n{\n"
                                      ".reg .b32 %r<4>;\n.reg .pred %p<2>;\n",
                                      body, "}\n"))
          .message());
}

TEST(Interpreter, RefusesWhatItDoesntKnow) {
  EXPECT_EQ(Loaded("add.s32 %r1, %r2, -1;\nret;\n"), "");
  EXPECT_THAT(Loaded("popc.b32 %r1, %r2;\nret;\n"),
              HasSubstr("x.ptx:7: popc.b32: an unknown instruction"));
  EXPECT_THAT(Loaded("add.s32 %r1, %r2;\nret;\n"),
              HasSubstr("x.ptx:7: add.s32: 2 operands, where 3 are known"));
  EXPECT_THAT(Loaded("add.s32 %r1, %r2, %r9;\nret;\n"),
              HasSubstr("\"%r9\" is neither a register nor a symbol"));
  EXPECT_THAT(Loaded("@%r1 ret;\nret;\n"), HasSubstr("%r1 is no predicate"));
  EXPECT_THAT(Loaded("ld.global.b128 %r1, [%r2];\nret;\n"),
              HasSubstr("x.ptx:7: ld.global.b128: an unknown load or store"));
  EXPECT_THAT(Loaded("bar.sync 1;\nret;\n"), HasSubstr("only barrier 0"));
  EXPECT_THAT(Loaded("bra $L;\n"), HasSubstr("bra: no label"));
  EXPECT_THAT(Loaded("@%p1 ret;\n"), HasSubstr("has no end"));
  EXPECT_THAT(Loaded("add.s32 %r1, %r2\nret;\n"),
              HasSubstr("x.ptx:8: \"ret\" where \";\" is expected"));
  EXPECT_THAT(Loaded(".local .b32 %x;\nret;\n"), HasSubstr("x.ptx:7"));
}

}  // namespace
}  // namespace capstan::ptx
