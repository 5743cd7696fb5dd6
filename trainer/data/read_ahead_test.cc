// SPDX-License-Identifier: Apache-2.0
//
// The costs of reading ahead: memory, allocations, and how far ahead it goes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "trainer/data/data_loader.h"

namespace {

std::atomic<int64_t> objects_made{0};
std::atomic<int64_t> tensors_made{0};

}  // namespace

// Counts allocations of the whole process, libraries included.
void* operator new(size_t bytes) {
  ++objects_made;
  void* const block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace capstan {
namespace {

// Counts tensor allocations.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ++tensors_made;
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void CountTensors() {
  static CountingAllocator* const allocator = [] {
    auto* made = new CountingAllocator;  // outlives every tensor
    c10::SetCPUAllocator(made, /*priority=*/1);
    return made;
  }();
  (void)allocator;
}

// Sample i is `length` times i. Writes into the given tensor or, if `fresh`,
// allocates a new one each time, as readers may.
class Constants final : public DatasetReader {
 public:
  explicit Constants(int64_t length, bool fresh = false)
      : length_(length), fresh_(fresh) {}
  int64_t size() const override { return int64_t{1} << 40; }
  bool shuffle() const override { return true; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    at::Tensor& ids = (*batch)["ids"];
    if (fresh_ || !ids.defined()) {
      ids =
          at::empty({static_cast<int64_t>(indices.size()), length_}, at::kLong);
    }
    int64_t* out = ids.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      for (int64_t i = 0; i < length_; ++i) *out++ = index;
    }
    ++reads_;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  int64_t reads() const { return reads_; }

 private:
  const int64_t length_;
  const bool fresh_;
  mutable std::atomic<int64_t> reads_{0};
};

std::unique_ptr<DataLoader> Load(const Constants& reader, int64_t micro) {
  DataLoaderOptions options;
  options.order.size = reader.size();
  options.shares = {micro, micro, 1};
  return DataLoader::Create(options, reader);
}

// Waits until `expected` batches have been read, and a while longer for more.
int64_t ReadsFrom(const Constants& reader, int64_t expected) {
  const auto pause = [](int64_t ms) {
    // sleeps: polls
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  };
  for (int i = 0; reader.reads() < expected && i < 30000; ++i) pause(1);
  pause(200);
  return reader.reads();
}

TEST(ReadAheadTest, SmallBatchesFarAheadLargeOnesThree) {
  const Constants small(64);
  auto loader = Load(small, 4);
  EXPECT_EQ(ReadsFrom(small, 16), 16);
  // No more until half of them are taken, to limit wake-ups.
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(loader->Next().ok());
  EXPECT_EQ(ReadsFrom(small, 16), 16);
  ASSERT_TRUE(loader->Next().ok());
  EXPECT_EQ(ReadsFrom(small, 24), 24);

  const Constants large(int64_t{2} << 20);  // 16 MiB a sample
  loader = Load(large, 1);
  EXPECT_EQ(ReadsFrom(large, 3), 3);
}

TEST(ReadAheadTest, MemoryOfBatchesComesBack) {
  const Constants reader(8);
  const auto loader = Load(reader, 2);
  std::set<const void*> places;
  for (int i = 0; i < 100; ++i) {
    const absl::StatusOr<Batch> batch = loader->Next();
    ASSERT_TRUE(batch.ok());
    const at::Tensor& ids = batch->at("ids");
    ASSERT_EQ(ids.const_data_ptr<int64_t>()[0], 2 * i);
    ASSERT_EQ(ids.const_data_ptr<int64_t>()[15], 2 * i + 1);
    places.insert(ids.const_data_ptr());
  }
  EXPECT_EQ(places.size(), 17);
}

TEST(ReadAheadTest, NobodyWritesIntoWhatIsHeld) {
  const Constants reader(8);
  const auto loader = Load(reader, 2);
  std::vector<Batch> held;
  std::vector<at::Tensor> views;
  for (int i = 0; i < 60; ++i) {
    absl::StatusOr<Batch> batch = loader->Next();
    ASSERT_TRUE(batch.ok());
    if (i % 2 == 0) {
      held.push_back(*std::move(batch));
    } else {
      views.push_back(batch->at("ids").select(0, 1));
    }
  }
  // All slots have been refilled.
  EXPECT_GE(ReadsFrom(reader, 68), 68);
  for (int64_t i = 0; i < 60; ++i) {
    if (i % 2 == 0) {
      const at::Tensor& ids = held[i / 2].at("ids");
      EXPECT_EQ(ids.const_data_ptr<int64_t>()[0], 2 * i);
    } else {
      EXPECT_EQ(views[i / 2].const_data_ptr<int64_t>()[0], 2 * i + 1);
    }
  }
}

struct Made {
  int64_t objects;
  int64_t tensors;
  int64_t reads;
};

// Over a loader's whole lifetime.
Made MadeBy200Batches(int64_t micro, bool fresh) {
  const Constants reader(8, fresh);
  const Made before = {objects_made, tensors_made, 0};
  {
    const auto loader = Load(reader, micro);
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(loader->Next().ok());
  }
  return {objects_made - before.objects, tensors_made - before.tensors,
          reader.reads()};
}

TEST(ReadAheadTest, NothingIsAllocatedForASample) {
  CountTensors();
  MadeBy200Batches(2, /*fresh=*/false);  // what is made once a process
  const Made of_two = MadeBy200Batches(2, /*fresh=*/false);
  const Made of_many = MadeBy200Batches(256, /*fresh=*/false);
  // Two a slot, the reader's and the samples' positions, and in `objects` an
  // entry of each in the map that Next returns.
  EXPECT_EQ(of_two.tensors, 34);
  EXPECT_EQ(of_many.tensors, 34);
  EXPECT_EQ(of_two.objects, of_many.objects);
  EXPECT_LE(of_many.objects, 400 + 200);
  // Checks the counter itself.
  const Made anew = MadeBy200Batches(2, /*fresh=*/true);
  EXPECT_EQ(anew.tensors, anew.reads + 17);
  EXPECT_GE(anew.reads, 200);
}

TEST(BatchSlotTest, SharedIsWhatSomebodyElseCouldSee) {
  Batch batch = {{"a", at::empty({2}, at::kLong)}};
  EXPECT_TRUE(Unshared(batch));
  {
    const at::Tensor same = batch["a"];
    EXPECT_FALSE(Unshared(batch));
  }
  {
    const at::Tensor view = batch["a"].select(0, 1);
    EXPECT_FALSE(Unshared(batch));
  }
  EXPECT_TRUE(Unshared(batch));
  batch["b"] = batch["a"];
  EXPECT_FALSE(Unshared(batch));
}

}  // namespace
}  // namespace capstan
