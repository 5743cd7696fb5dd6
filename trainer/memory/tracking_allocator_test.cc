// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/tracking_allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace capstan {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor Bytes(int64_t bytes) { return at::empty({bytes}, at::kByte); }

class TrackingAllocatorTest : public ::testing::Test {
 protected:
  TrackingAllocatorTest() {
    InstallTrackingAllocator();
    ResetTrackedPeak();
    before_ = TrackedMemory();
  }

  // Relative to the start of the test.
  int64_t Live(MemoryCategory category) const {
    const int i = static_cast<int>(category);
    return TrackedMemory().live[i] - before_.live[i];
  }
  int64_t AtPeak(MemoryCategory category) const {
    const int i = static_cast<int>(category);
    return TrackedMemory().at_peak[i] - before_.live[i];
  }

  MemoryReport before_;
};

TEST_F(TrackingAllocatorTest, CountsBytesByTheInnermostScope) {
  const at::Tensor other = Bytes(5);
  const MemoryScope outer(MemoryCategory::kParameters);
  const at::Tensor parameters = Bytes(7);
  at::Tensor gradients;
  {
    const MemoryScope inner(MemoryCategory::kGradients);
    gradients = Bytes(11);
  }
  const at::Tensor more = Bytes(13);
  EXPECT_EQ(Live(MemoryCategory::kOther), 5);
  EXPECT_EQ(Live(MemoryCategory::kParameters), 20);
  EXPECT_EQ(Live(MemoryCategory::kGradients), 11);
  gradients.reset();  // in another scope than it was allocated in
  EXPECT_EQ(Live(MemoryCategory::kGradients), 0);
  EXPECT_EQ(Live(MemoryCategory::kParameters), 20);
}

TEST_F(TrackingAllocatorTest, KeepsTheCategoriesOfTheMomentOfThePeak) {
  {
    const MemoryScope scope(MemoryCategory::kActivations);
    const at::Tensor a = Bytes(3 * kMiB);
    const MemoryScope logits(MemoryCategory::kLogits);
    const at::Tensor b = Bytes(2 * kMiB);
  }
  {
    // More of one category, but less in all.
    const MemoryScope scope(MemoryCategory::kLogits);
    const at::Tensor c = Bytes(4 * kMiB);
  }
  EXPECT_EQ(AtPeak(MemoryCategory::kActivations), 3 * kMiB);
  EXPECT_EQ(AtPeak(MemoryCategory::kLogits), 2 * kMiB);
  EXPECT_EQ(Live(MemoryCategory::kLogits), 0);
  ResetTrackedPeak();
  EXPECT_EQ(AtPeak(MemoryCategory::kLogits), 0);
}

TEST_F(TrackingAllocatorTest, MemoryIsAlignedAndWritable) {
  std::vector<at::Tensor> all;
  for (int64_t bytes = 1; bytes < 70000; bytes = bytes * 3 + 1) {
    all.push_back(at::ones({bytes}, at::kByte));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back().data_ptr()) % 64, 0);
  }
  for (const at::Tensor& tensor : all) {
    EXPECT_EQ(tensor.sum().item<int64_t>(), tensor.numel());
  }
  EXPECT_EQ(at::empty({0}, at::kByte).data_ptr(), nullptr);
}

TEST_F(TrackingAllocatorTest, FollowsAResizedTensor) {
  at::Tensor tensor = Bytes(100);
  tensor.resize_({1000});
  EXPECT_EQ(Live(MemoryCategory::kOther), 1000);
  tensor.reset();
  EXPECT_EQ(Live(MemoryCategory::kOther), 0);
}

TEST_F(TrackingAllocatorTest, RawMemoryMayBeOfTheAllocatorBefore) {
  c10::Allocator* const before = c10::GetDefaultCPUAllocator();
  c10::Allocator* const now = c10::GetCPUAllocator();
  ASSERT_NE(before, now);
  now->raw_deallocate(before->raw_allocate(1000));
  void* const tracked = now->raw_allocate(1000);
  EXPECT_EQ(Live(MemoryCategory::kOther), 1000);
  now->raw_deallocate(tracked);
  EXPECT_EQ(Live(MemoryCategory::kOther), 0);
}

TEST_F(TrackingAllocatorTest, ThreadsHaveTheirOwnCategories) {
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<at::Tensor> kept(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &kept] {
      const MemoryScope scope(static_cast<MemoryCategory>(t + 1));
      kept[t] = Bytes(1000 * (t + 1));
      for (int i = 0; i < kRounds; ++i) Bytes(64 + i % 100);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(Live(static_cast<MemoryCategory>(t + 1)), 1000 * (t + 1));
  }
  kept.clear();  // by another thread than allocated it
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(Live(static_cast<MemoryCategory>(t + 1)), 0);
  }
  EXPECT_GE(Total(TrackedMemory().at_peak) - Total(before_.live), 10000);
}

TEST_F(TrackingAllocatorTest, OutOfMemoryIsTheUsualError) {
  EXPECT_THROW(Bytes(int64_t{1} << 50), c10::Error);
  EXPECT_EQ(Live(MemoryCategory::kOther), 0);
}

}  // namespace
}  // namespace capstan
