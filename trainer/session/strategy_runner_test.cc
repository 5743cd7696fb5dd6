// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/strategy_runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

// Records the callbacks in order.
class Recorder final : public IdleStrategy {
 public:
  explicit Recorder(bool wants) : wants_(wants) {}

  bool wants_unit_callbacks() const override { return wants_; }
  void PreForward(int unit) override { Note("pre forward", unit); }
  void PostForward(int unit) override { Note("post forward", unit); }
  void PreBackward(int unit) override { Note("pre backward", unit); }

  std::vector<std::string> calls;

 private:
  void Note(const char* what, int unit) {
    calls.push_back(absl::StrCat(what, " ", unit));
  }

  const bool wants_;
};

// Two units that double their input, forward and backward.
void RunTwoUnits(Recorder& strategy, bool with_gradient) {
  StrategyRunner runner(&strategy);
  at::Tensor x = at::ones({3});
  x.set_requires_grad(with_gradient);
  at::Tensor y = x;
  for (int unit = 0; unit < 2; ++unit) {
    y = runner.Run(unit, y, [&strategy, unit](const at::Tensor& input) {
      strategy.calls.push_back(absl::StrCat("body ", unit));
      return input * 2;
    });
  }
  EXPECT_EQ(y.sum().item<float>(), 12.0f);
  if (with_gradient) {
    torch::autograd::backward({y.sum()}, {});
    EXPECT_EQ(x.grad().sum().item<float>(), 12.0f);
  }
}

TEST(StrategyRunnerTest, CallbacksSurroundEachUnitAndBackwardGoesBackwards) {
  Recorder strategy(/*wants=*/true);
  RunTwoUnits(strategy, /*with_gradient=*/true);
  EXPECT_EQ(strategy.calls, std::vector<std::string>(
                                {"pre forward 0", "body 0", "post forward 0",
                                 "pre forward 1", "body 1", "post forward 1",
                                 "pre backward 1", "pre backward 0"}));
}

TEST(StrategyRunnerTest, WithoutGradientsThereIsNoBackward) {
  Recorder strategy(/*wants=*/true);
  RunTwoUnits(strategy, /*with_gradient=*/false);
  EXPECT_EQ(strategy.calls.size(), 6);
}

TEST(StrategyRunnerTest, AStrategyThatWantsNoneGetsNone) {
  Recorder strategy(/*wants=*/false);
  RunTwoUnits(strategy, /*with_gradient=*/true);
  EXPECT_EQ(strategy.calls, std::vector<std::string>({"body 0", "body 1"}));
}

// Four units y = (x * w)^2 with a weight each, the first one's input a
// constant.
struct Squares {
  Squares() {
    for (int unit = 0; unit < 4; ++unit) {
      weights.push_back(at::ones({3}) * (0.5 + unit));
      weights.back().set_requires_grad(true);
    }
  }
  at::Tensor Loss(UnitRunner& runner) {
    at::Tensor y = at::ones({3}) * 0.7;
    for (int unit = 0; unit < 4; ++unit) {
      const at::Tensor weight = weights[unit];
      y = runner.Run(unit, y, [this, weight, unit](const at::Tensor& input) {
        bodies.push_back(unit);
        const at::Tensor z = input * weight;
        return z * z;
      });
    }
    return y.sum();
  }
  std::vector<at::Tensor> weights;
  std::vector<int> bodies;
};

TEST(StrategyRunnerTest, RecomputedUnitsGiveTheSameGradients) {
  Recorder strategy(/*wants=*/true);
  Squares plain, recomputed;
  StrategyRunner plain_runner(&strategy);
  torch::autograd::backward({plain.Loss(plain_runner)}, {});
  strategy.calls.clear();
  StrategyRunner runner(&strategy, {/*every=*/1, /*units=*/4});
  const at::Tensor loss = recomputed.Loss(runner);
  EXPECT_EQ(recomputed.bodies, std::vector<int>({0, 1, 2, 3}));
  torch::autograd::backward({loss}, {});
  // The last is never recomputed.
  EXPECT_EQ(recomputed.bodies, std::vector<int>({0, 1, 2, 3, 2, 1, 0}));
  for (int unit = 0; unit < 4; ++unit) {
    EXPECT_TRUE(
        recomputed.weights[unit].grad().equal(plain.weights[unit].grad()));
  }
  EXPECT_EQ(
      std::vector<std::string>(strategy.calls.end() - 4, strategy.calls.end()),
      std::vector<std::string>({"pre backward 3", "pre backward 2",
                                "pre backward 1", "pre backward 0"}));
}

// Without a GPU the copy is another one in the same memory; the values are
// what counts here.
TEST(StrategyRunnerTest, OffloadedInputsGiveTheSameGradients) {
  Recorder strategy(/*wants=*/false);
  Squares plain, offloaded;
  StrategyRunner plain_runner(&strategy);
  torch::autograd::backward({plain.Loss(plain_runner)}, {});
  ActivationCheckpointing checkpointing = {/*every=*/1, /*units=*/4};
  checkpointing.offload = true;
  StrategyRunner runner(&strategy, checkpointing);
  torch::autograd::backward({offloaded.Loss(runner)}, {});
  EXPECT_EQ(offloaded.bodies, std::vector<int>({0, 1, 2, 3, 2, 1, 0}));
  for (int unit = 0; unit < 4; ++unit) {
    EXPECT_TRUE(
        offloaded.weights[unit].grad().equal(plain.weights[unit].grad()));
  }
}

TEST(StrategyRunnerTest, EverySecondUnitIsRecomputed) {
  Recorder strategy(/*wants=*/false);
  Squares squares;
  StrategyRunner runner(&strategy, {/*every=*/2, /*units=*/4});
  torch::autograd::backward({squares.Loss(runner)}, {});
  EXPECT_EQ(squares.bodies, std::vector<int>({0, 1, 2, 3, 2, 0}));
}

}  // namespace
}  // namespace capstan
