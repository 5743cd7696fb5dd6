// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/witness_group.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/comm/phase_group.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

// Of a second rank that has just this one's numbers; with a fault, if wanted.
class TwinGroup : public IdleGroup, public PhaseGroup {
 public:
  TwinGroup() : IdleGroup(/*rank=*/0, /*size=*/2) {}
  std::unique_ptr<Work> AllReduce(const at::Tensor& t) override {
    ++calls;
    if (failed) return std::make_unique<IdleWork>();
    t.mul_(2.0);
    return t.scalar_type() == at::kFloat ? Disturbed(t)
                                         : std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& out,
                                      const at::Tensor& in) override {
    ++calls;
    out.copy_(in.view({2, -1})[0].view_as(out) * 2.0);
    return out.scalar_type() == at::kFloat ? Disturbed(out)
                                           : std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& out,
                                  const at::Tensor& in) override {
    ++calls;
    if (failed) return std::make_unique<IdleWork>();
    out.view({2, -1}).copy_(in.view({1, -1}));
    if (out.scalar_type() == at::kFloat) out[out.numel() - 1].add_(fault);
    return std::make_unique<IdleWork>();
  }
  absl::StatusOr<int> EndPhase(const absl::Status&,
                               const std::string&) override {
    return -1;
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& t, int root) override {
    ++calls;
    return IdleGroup::Broadcast(t, root);
  }
  std::unique_ptr<Work> AllToAll(const at::Tensor& out,
                                 const at::Tensor& in) override {
    ++calls;
    return IdleGroup::AllToAll(out, in);
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor& out, int from,
                                 const at::Tensor& in, int to) override {
    ++calls;
    return IdleGroup::SendRecv(out, from, in, to);
  }
  std::unique_ptr<Work> Disturbed(const at::Tensor& t) {
    if (faults-- > 0) t[1].add_(fault);
    return std::make_unique<IdleWork>();
  }
  void FailPhase(const std::string&) override { failed = true; }
  bool PhaseFailed() const override { return failed; }
  void StopCommunicating() override {}

  double fault = 0.0;
  int faults = 1000;  // of sums
  int calls = 0;
  bool failed = false;
};

class WitnessGroupTest : public testing::Test {
 protected:
  WitnessGroupTest() { Begin(/*twice=*/false); }
  void Begin(bool twice) {
    auto inner = std::make_unique<TwinGroup>();
    twin_ = inner.get();
    MessageChecks checks;
    checks.on_wrong = [this](const WrongMessage& wrong) {
      wrong_.push_back(wrong);
    };
    checks.phases = twin_;
    checks.twice = twice;
    checks.due = [this] { return due_; };
    group_ = WitnessMessages(std::move(inner), std::move(checks));
  }
  void Exchange(float x = 1.0f) {
    const at::Tensor sum = x * at::ones({3000});
    group_->AllReduce(sum)->Wait();
    const at::Tensor all = at::ones({6000});
    group_->AllGather(all, at::ones({3000}))->Wait();
  }

  bool due_ = true;
  TwinGroup* twin_ = nullptr;
  std::unique_ptr<ProcessGroup> group_;
  std::vector<WrongMessage> wrong_;
};

TEST_F(WitnessGroupTest, FaultsAreToldWithTheirSender) {
  Exchange();
  EXPECT_TRUE(wrong_.empty());
  twin_->fault = 0.5;
  Exchange();
  ASSERT_EQ(wrong_.size(), 2);
  EXPECT_EQ(wrong_[0].collective, "the all-reduce");
  EXPECT_EQ(wrong_[0].from, -1);
  EXPECT_EQ(wrong_[1].collective, "the all-gather");
  EXPECT_EQ(wrong_[1].from, 1);
}

// Far below what rounding may be.
TEST_F(WitnessGroupTest, SumsThatAreMadeTwiceAreTheSameBits) {
  const auto exchange = [this](bool scattered) {
    if (scattered) {
      group_->ReduceScatter(at::ones({1500}), at::ones({3000}))->Wait();
    } else {
      group_->AllReduce(at::ones({3000}))->Wait();
    }
  };
  for (const bool twice : {false, true}) {
    for (const bool scattered : {false, true}) {
      Begin(twice);
      wrong_.clear();
      twin_->fault = 2e-7;  // of 2
      twin_->faults = 1;
      exchange(scattered);
      EXPECT_EQ(wrong_.size(), twice ? 1 : 0);
      exchange(scattered);
      EXPECT_EQ(wrong_.size(), twice ? 1 : 0);
      // The same each time: seen by its size.
      wrong_.clear();
      twin_->fault = 0.5;
      twin_->faults = 2;
      exchange(scattered);
      EXPECT_EQ(wrong_.size(), 1);
    }
  }
}

// Their squares are 0 in float32.
TEST_F(WitnessGroupTest, TinyNumbersAreNoAlarm) {
  for (const float x : {1e-20f, 1e-24f, 1e-30f, 1e-38f, 1e-42f}) Exchange(x);
  EXPECT_TRUE(wrong_.empty());
}

TEST_F(WitnessGroupTest, WhatIsNotDueIsSentAlone) {
  const at::Tensor one = at::ones({3000}), two = at::ones({6000});
  const std::vector<std::function<void()>> collectives = {
      [&] { group_->AllReduce(one.clone())->Wait(); },
      [&] { group_->ReduceScatter(one.clone(), two)->Wait(); },
      [&] { group_->AllGather(two.clone(), one)->Wait(); },
      [&] { group_->Broadcast(one.clone(), 0)->Wait(); },
      [&] { group_->AllToAll(two.clone(), two)->Wait(); },
      [&] { group_->SendRecv(one.clone(), -1, one, 1)->Wait(); },
  };
  for (const bool due : {false, true}) {
    due_ = due;
    for (size_t i = 0; i < collectives.size(); ++i) {
      twin_->calls = 0;
      collectives[i]();
      EXPECT_EQ(twin_->calls, due ? 2 : 1) << i;
    }
  }
  due_ = false;
  twin_->fault = 0.5;
  wrong_.clear();
  Exchange();
  EXPECT_TRUE(wrong_.empty());
}

// Collectives succeed without effect there.
TEST_F(WitnessGroupTest, NothingIsComparedOnceARankHasFailed) {
  twin_->FailPhase("");
  Exchange();
  EXPECT_TRUE(wrong_.empty());
}

}  // namespace
}  // namespace capstan
