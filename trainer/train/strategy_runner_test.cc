// SPDX-License-Identifier: Apache-2.0
#include "trainer/train/strategy_runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

// Writes down which callbacks come, in which order.
class Recorder final : public Strategy {
 public:
  explicit Recorder(bool wants) : wants_(wants) {}

  absl::Status CheckWorldSize(int) const override { return absl::OkStatus(); }
  absl::Status Setup(const StrategyContext&) override {
    return absl::OkStatus();
  }
  absl::Span<OptimizerShard> OptimizerShards() override { return {}; }
  void BeginMicroStep(int, int) override {}
  bool wants_unit_callbacks() const override { return wants_; }
  void PreForward(int unit) override { Note("pre forward", unit); }
  void PostForward(int unit) override { Note("post forward", unit); }
  void PreBackward(int unit) override { Note("pre backward", unit); }
  void FinishBackward() override {}
  double GradientSquaredSum() override { return 0.0; }
  void PublishParameters() override {}
  std::vector<OwnedSlice> OwnedSlices() const override { return {}; }
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>&) override {
    return absl::OkStatus();
  }

  std::vector<std::string> calls;

 private:
  void Note(const char* what, int unit) {
    calls.push_back(absl::StrCat(what, " ", unit));
  }

  const bool wants_;
};

// Two units that double their input, there and back.
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

}  // namespace
}  // namespace capstan
