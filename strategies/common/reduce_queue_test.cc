// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/reduce_queue.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

// Ranks that all hold the same tensors, of which this is the first; notes what
// is called, and waited for, as "NAME.rs" and "NAME.rs!".
class SameRanks : public IdleGroup {
 public:
  SameRanks(std::string name, int size, std::vector<std::string>* notes)
      : IdleGroup(0, size), name_(std::move(name)), notes_(*notes) {}

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    at::Tensor sum = tensor;
    sum.mul_(size());
    return Note(".ar");
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    at::Tensor slice = output;
    slice.copy_(input.narrow(0, 0, output.numel()) * size());
    return Note(".rs");
  }
  std::unique_ptr<Work> AllGather(const at::Tensor&,
                                  const at::Tensor&) override {
    return Note(".ag");
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor&, int) override {
    return Note(".b");
  }

 private:
  class Noted : public Work {
   public:
    Noted(std::string name, std::vector<std::string>* notes)
        : name_(std::move(name)), notes_(*notes) {}
    void Wait() override { notes_.push_back(absl::StrCat(name_, "!")); }

   private:
    const std::string name_;
    std::vector<std::string>& notes_;
  };

  std::unique_ptr<Work> Note(const std::string& what) {
    notes_.push_back(absl::StrCat(name_, what));
    return std::make_unique<Noted>(notes_.back(), &notes_);
  }

  const std::string name_;
  std::vector<std::string>& notes_;
};

using Notes = std::vector<std::string>;

at::Tensor Sums(double value) { return at::full({8}, value); }

TEST(ReduceQueueTest, KeepsTwoUnderWay) {
  Notes notes;
  SameRanks shards("s", 4, &notes);
  ReduceQueue queue(&shards, nullptr, nullptr);
  const at::Tensor to = at::zeros({2});
  for (int i = 0; i < 3; ++i) queue.Start(Sums(1), to, i > 0, true);
  EXPECT_EQ(notes, (Notes{"s.rs", "s.rs", "s.rs!", "s.rs"}));
  queue.Drain();
  EXPECT_EQ(notes.size(), 6);
  EXPECT_TRUE(at::equal(to, at::full({2}, 12.0)));
}

// The oldest makes room before what is issued in between, not after.
TEST(ReduceQueueTest, ReservesRoom) {
  Notes notes;
  SameRanks shards("s", 4, &notes);
  ReduceQueue queue(&shards, nullptr, nullptr);
  const at::Tensor to = at::zeros({2});
  queue.Start(Sums(1), to, false, true);
  queue.Reserve();
  EXPECT_EQ(notes, (Notes{"s.rs"}));
  queue.Start(Sums(1), to, true, true);
  notes.clear();
  // Two at a time need the room of both.
  queue.Reserve();
  queue.Reserve();
  EXPECT_EQ(notes, (Notes{"s.rs!", "s.rs!"}));
  notes.clear();
  queue.Start(Sums(1), to, true, true);
  queue.Start(Sums(1), to, true, true);
  EXPECT_EQ(notes, (Notes{"s.rs", "s.rs"}));
  queue.Drain();
  EXPECT_TRUE(at::equal(to, at::full({2}, 16.0)));
}

// Two replicas of two shards: the sum of all micro-steps is summed over the
// replicas once, while the next bucket is reduced.
TEST(ReduceQueueTest, ReplicasAreSummedAfterTheLastMicroStep) {
  for (int shard_count : {1, 2}) {
    Notes notes;
    SameRanks shards("s", shard_count, &notes), replicas("r", 2, &notes);
    ReduceQueue queue(&shards, &replicas, nullptr);
    const at::Tensor to = at::zeros({8 / shard_count});
    for (int step = 0; step < 3; ++step) {
      queue.Start(Sums(step + 1), to, step > 0, step == 2);
      queue.Drain();
    }
    EXPECT_EQ(std::count(notes.begin(), notes.end(), "r.ar"), 1);
    EXPECT_EQ(notes.back(), "r.ar!");
    EXPECT_TRUE(at::equal(to, at::full_like(to, 6.0 * shard_count * 2)));
  }
}

TEST(ReduceQueueTest, WaitsForReplicasInTheEnd) {
  Notes notes;
  SameRanks shards("s", 2, &notes), replicas("r", 2, &notes);
  ReduceQueue queue(&shards, &replicas, nullptr);
  const at::Tensor to = at::zeros({4});
  for (int i = 0; i < 3; ++i) queue.Start(Sums(1), to, false, true);
  queue.Drain();
  EXPECT_EQ(notes, (Notes{"s.rs", "s.rs", "s.rs!", "r.ar", "s.rs", "s.rs!",
                          "r.ar", "s.rs!", "r.ar", "r.ar!", "r.ar!", "r.ar!"}));
}

}  // namespace
}  // namespace capstan
