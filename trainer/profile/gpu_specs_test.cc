// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/gpu_specs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace capstan {
namespace {

TEST(GpuSpecsTest, NamesAndKeysAreUnique) {
  std::set<std::string> names;
  for (const GpuSpecs& gpu : AllGpuSpecs()) {
    EXPECT_TRUE(names.insert(gpu.name).second) << gpu.name;
    EXPECT_TRUE(names.insert(gpu.key).second) << gpu.key;
    EXPECT_EQ(FindGpuSpecs(gpu.name), &gpu);
    EXPECT_EQ(FindGpuSpecs(gpu.key), &gpu);
  }
}

// A slip of a digit or of sparsity's factor of two shows in the ratios, which
// are the architecture's.
TEST(GpuSpecsTest, RatiosAreThoseOfTheArchitectures) {
  for (const GpuSpecs& gpu : AllGpuSpecs()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_GE(gpu.fp16, 50e12);
    EXPECT_LE(gpu.fp16, 3e15);
    if (gpu.bf16 > 0) {
      EXPECT_EQ(gpu.bf16, gpu.fp16);
      EXPECT_NEAR(gpu.tf32 / gpu.bf16, 0.5, 0.01);
    } else {
      EXPECT_EQ(gpu.tf32, 0);
    }
    EXPECT_GE(gpu.fp16 / gpu.fp32, 1.9);
    EXPECT_LE(gpu.fp16 / gpu.fp32, 35);
    // FLOPs for each byte of memory traffic.
    EXPECT_GT(gpu.fp16 / gpu.bandwidth, 70);
    EXPECT_LT(gpu.fp16 / gpu.bandwidth, 450);
    EXPECT_GE(gpu.memory, 16e9);
    EXPECT_GE(gpu.link, 16e9);
    EXPECT_LT(gpu.link, gpu.bandwidth);
    EXPECT_GE(gpu.host, 16e9);
    EXPECT_LE(gpu.host, gpu.link);
  }
}

// PCI Express by generation of the card, NVLink-C2C beside a Grace CPU.
TEST(GpuSpecsTest, LinksToTheHost) {
  EXPECT_EQ(FindGpuSpecs("t4")->host, 16e9);
  EXPECT_EQ(FindGpuSpecs("a100")->host, 32e9);
  EXPECT_EQ(FindGpuSpecs("l40s")->host, 32e9);
  EXPECT_EQ(FindGpuSpecs("rtx4090")->host, 32e9);
  EXPECT_EQ(FindGpuSpecs("h100")->host, 64e9);
  EXPECT_EQ(FindGpuSpecs("gh200")->host, 450e9);
}

TEST(GpuSpecsTest, PeakByDtype) {
  const GpuSpecs* const h100 = FindGpuSpecs("NVIDIA H100 80GB HBM3");
  ASSERT_NE(h100, nullptr);
  EXPECT_EQ(PeakFlops(*h100, c10::kBFloat16, false), 989.5e12);
  EXPECT_EQ(PeakFlops(*h100, c10::kHalf, false), 989.5e12);
  EXPECT_EQ(PeakFlops(*h100, c10::kFloat, false), 67e12);
  EXPECT_EQ(PeakFlops(*h100, c10::kFloat, true), 494.5e12);
  EXPECT_EQ(PeakFlops(*h100, c10::kDouble, true), 0.0);
  // Has neither bfloat16 nor TF32.
  const GpuSpecs* const t4 = FindGpuSpecs("t4");
  ASSERT_NE(t4, nullptr);
  EXPECT_EQ(PeakFlops(*t4, c10::kBFloat16, false), 0.0);
  EXPECT_EQ(PeakFlops(*t4, c10::kFloat, true), 8.1e12);
}

TEST(GpuSpecsTest, OthersAreUnknown) {
  EXPECT_EQ(FindGpuSpecs("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), nullptr);
  EXPECT_EQ(FindGpuSpecs("NVIDIA GeForce RTX 4090 Laptop GPU"), nullptr);
  EXPECT_EQ(FindGpuSpecs(""), nullptr);
  EXPECT_THAT(GpuKeys(), ::testing::HasSubstr("a100, "));
}

}  // namespace
}  // namespace capstan
