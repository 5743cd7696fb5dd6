// SPDX-License-Identifier: Apache-2.0
//
// What MicroStepGraphs tells of models and objectives that can't be recorded,
// and that none of them ever changes a result. Started by run.sh.
#include "trainer/session/micro_step_graph.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/comm/nccl/cuda_graph.h"
#include "kernels/context/work_recorder.h"
#include "kernels/to_device.h"
#include "plugins/sdk/idle_for_test.h"
#include "testing/standin/runtime/standin_testing.h"

namespace capstan {
namespace {

using standin::Outcome;

constexpr int64_t kSize = 256;

// One parameter w; its gradient is the flat tensor itself.
class OneParameter final : public IdleStrategy, public HeldGradients {
 public:
  explicit OneParameter(int64_t size)
      : w(at::linspace(0.5, 1.5, size, at::device(at::kCUDA))),
        gradient_(at::zeros({size}, at::device(at::kCUDA))) {
    w.set_requires_grad(true);
  }

  void FixGradients() override {}
  void HoldReductions() override { ++held_steps; }
  at::Tensor held() override { return gradient_; }
  HeldGradients* held_gradients() override { return this; }
  std::string GradientState() const override { return written_ ? "1" : "0"; }
  void SetGradientState(const std::string& state) override {
    written_ = state == "1";
  }

  void Begin(bool first) {
    if (first) written_ = false;
  }
  void Backward(const at::Tensor& loss, const at::Tensor& scale) {
    const at::Tensor d = torch::autograd::grad({loss}, {w}, {scale})[0];
    if (written_) {
      gradient_.add_(d);
    } else {
      gradient_.copy_(d);
    }
    written_ = true;
  }

  at::Tensor w;
  int held_steps = 0;

 private:
  at::Tensor gradient_;
  bool written_ = false;
};

// What a unit's body does to x * w; `host`: the batch's x on the host.
using Middle =
    std::function<at::Tensor(const at::Tensor& x, const at::Tensor& host)>;

class Toy {
 public:
  // `before`: outside of units, on the host's values; may be null.
  explicit Toy(Middle middle, Middle before = nullptr, int64_t size = kSize,
               double compared_of = 1000.0)
      : strategy_(size), runner_(&strategy_) {
    forward_ = [this, middle, before](const Batch& batch, UnitRunner& runner) {
      const at::Tensor& host = batch.at("host");
      at::Tensor x = batch.at("x");
      if (before != nullptr) x = before(x, host);
      const at::Tensor h = runner.Run(0, x, [this](const at::Tensor& input) {
        return input * strategy_.w;
      });
      LossSum loss;
      loss.sum = runner.Run(1, h, [&](const at::Tensor& input) {
        return middle(input, host).square().sum();
      });
      loss.count = host.size(0);
      return loss;
    };
    MicroStepGraphs::Parts parts;
    parts.strategy = &strategy_;
    parts.gradients = &strategy_;
    parts.runner = &runner_;
    parts.device = at::Device(at::kCUDA, 0);
    parts.forward = forward_;
    parts.backward = [this](const at::Tensor& loss, const at::Tensor& scale) {
      strategy_.Backward(loss, scale);
    };
    parts.scale = [this] { return scale_; };
    parts.new_graph = [this] {
      ++recorded;
      return NewCudaGraph();
    };
    parts.idle_memory = IdleGraphMemory;
    parts.note = [this](const std::string& line) { notes.push_back(line); };
    parts.compared_of = compared_of;
    graphs_ = std::make_unique<MicroStepGraphs>(std::move(parts));
  }

  // Steps of two micro-steps of `rows` rows, each with other values: loss and
  // gradient must be those of a run without graphs.
  void Steps(int steps, int64_t rows = 4) {
    CAPSTAN_CHECK(WrongOf(steps, rows) == 0);
  }

  // Such steps; returns how many micro-steps have another loss or gradient.
  int WrongOf(int steps, int64_t rows = 4) {
    int wrong = 0;
    for (int i = 0; i < steps; ++i) {
      scale_ = i % 3 == 2 ? 0.25 : 0.5;
      at::Tensor expected;
      for (const bool first : {true, false}) {
        seed_ += 1.0f;
        const at::Tensor host =
            at::arange(rows, at::kFloat).add(seed_).div(rows).unsqueeze(1);
        const Batch batch = {{"host", host},
                             {"x", host.to(at::kCUDA)
                                       .expand({rows, strategy_.w.numel()})
                                       .contiguous()}};
        strategy_.Begin(first);
        const LossSum loss = graphs_->Run(batch, totals);
        const at::Tensor actual = strategy_.held().clone();
        const LossSum usual = forward_(batch, runner_);
        CAPSTAN_CHECK(loss.count == usual.count);
        const at::Tensor d = torch::autograd::grad(
            {usual.sum}, {strategy_.w},
            {at::full({}, scale_, at::device(at::kCUDA))})[0];
        expected = first ? d : expected + d;
        const bool same = loss.sum.item<float>() == usual.sum.item<float>() &&
                          at::equal(actual, expected);
        wrong += same ? 0 : 1;
      }
    }
    return wrong;
  }

  // Steps, after which exactly this has been told.
  void ExpectNote(const std::string& part, int steps = 8) {
    Steps(steps);
    CAPSTAN_CHECK(!notes.empty());
    if (notes[0].find("train.cuda_graphs: ") != 0 ||
        notes[0].find(part) == std::string::npos) {
      fprintf(stderr, "told: %s\n", notes[0].c_str());
      _exit(3);
    }
  }

  std::vector<std::string> notes;
  std::vector<double> totals;  // the step's
  int recorded = 0;

 private:
  OneParameter strategy_;
  StrategyRunner runner_;
  std::function<LossSum(const Batch&, UnitRunner&)> forward_;
  std::unique_ptr<MicroStepGraphs> graphs_;
  double scale_ = 0.5;
  float seed_ = 0.0f;
};

class MicroStepGraphsTest : public ::testing::TestWithParam<std::string> {
 protected:
  Outcome Run(const std::function<void()>& body,
              const std::string& more = "memory=1G") {
    return standin::RunOnStandin(GetParam() + "," + more, [&] {
      at::globalContext().lazyInitDevice(at::kCUDA);
      body();
      std::fflush(nullptr);
      cudaDeviceSynchronize();
      _exit(0);
    });
  }
  void ExpectClean(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.Findings(), "") << outcome.report;
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, MicroStepGraphsTest,
                         ::testing::Values("late", "eager", "random:1"));

at::Tensor Plain(const at::Tensor& x, const at::Tensor&) { return x.relu(); }

TEST_P(MicroStepGraphsTest, RepeatsWhatItMay) {
  ExpectClean(Run([] {
    Toy toy(Plain);
    toy.Steps(10);
    CAPSTAN_CHECK(toy.notes.empty());
    CAPSTAN_CHECK(toy.recorded == 2);  // one writes, one adds
    toy.Steps(8, /*rows=*/3);
    CAPSTAN_CHECK(toy.recorded == 4);
    toy.Steps(2);
    CAPSTAN_CHECK(toy.recorded == 4);
  }));
}

// Values that are brought to the device outside of units come anew each time.
TEST_P(MicroStepGraphsTest, ValuesOfTheHost) {
  ExpectClean(Run([] {
    Toy toy(Plain, [](const at::Tensor& x, const at::Tensor& host) {
      return x + kernels::ToDevice(host.mul(2).contiguous(), x.device());
    });
    toy.Steps(10);
    CAPSTAN_CHECK(toy.notes.empty());
    CAPSTAN_CHECK(toy.recorded == 2);
  }));
}

// A number that is told chooses the recording.
TEST_P(MicroStepGraphsTest, NumbersOfTheHost) {
  ExpectClean(Run([] {
    double factor = 1.0;
    Toy toy([&](const at::Tensor& x, const at::Tensor&) { return x * factor; },
            [&](const at::Tensor& x, const at::Tensor& host) {
              const auto odd = host[0][0].item<double>() * 4 / 2;
              const bool whole = odd == std::floor(odd);
              factor = whole ? 3.0 : 2.0;
              if (WorkRecorder* const recorder = CurrentWorkRecorder()) {
                recorder->Number(whole ? 3 : 2);
              }
              return x;
            });
    toy.Steps(16);
    CAPSTAN_CHECK(toy.notes.empty());
  }));
}

// An objective may compute with a step's totals on the host: those that differ
// in their last digit have recordings of their own.
TEST_P(MicroStepGraphsTest, TotalsOfTheStep) {
  ExpectClean(Run([] {
    double total = 1234567;
    Toy toy([&](const at::Tensor& x, const at::Tensor&) {
      return x * (total / 1000000);
    });
    toy.totals = {total};
    toy.Steps(8);
    total = 1234571;
    toy.totals = {total};
    toy.Steps(8);
    CAPSTAN_CHECK(toy.notes.empty());
    CAPSTAN_CHECK(toy.recorded == 4);
  }));
}

// The bug that would give wrong numbers silently: a number of the host's that
// nobody tells.
TEST_P(MicroStepGraphsTest, AnUntoldNumberIsFound) {
  ExpectClean(Run([] {
    Toy toy([](const at::Tensor& x, const at::Tensor& host) {
      return x * host.sum().item<double>();
    });
    toy.ExpectNote("repeating their recorded work gives another loss");
  }));
}

// One that changes after the first comparisons.
TEST_P(MicroStepGraphsTest, ALateUntoldNumberIsFoundByComparingAll) {
  ExpectClean(Run([] {
    double factor = 2.0;
    Toy toy([&](const at::Tensor& x, const at::Tensor&) { return x * factor; },
            nullptr, kSize, /*compared_of=*/1.0);
    toy.Steps(8);
    CAPSTAN_CHECK(toy.notes.empty() && toy.recorded == 2);
    factor = 3.0;
    toy.ExpectNote("repeating their recorded work gives another loss");
  }));
}

// Else by one that is drawn: repetitions before it are wrong, none behind it.
TEST_P(MicroStepGraphsTest, ALateUntoldNumberIsFoundByADraw) {
  ExpectClean(Run([] {
    double factor = 2.0;
    Toy toy([&](const at::Tensor& x, const at::Tensor&) { return x * factor; },
            nullptr, kSize, /*compared_of=*/8.0);
    toy.Steps(8);
    CAPSTAN_CHECK(toy.notes.empty() && toy.recorded == 2);
    factor = 3.0;
    CAPSTAN_CHECK(toy.WrongOf(40) > 0);
    toy.ExpectNote("repeating their recorded work gives another loss");
  }));
}

TEST_P(MicroStepGraphsTest, AWaitIsTold) {
  ExpectClean(Run([] {
    Toy toy([](const at::Tensor& x, const at::Tensor&) {
      return x * x.detach().sum().item<double>();
    });
    toy.ExpectNote("waits for the device");
  }));
}

TEST_P(MicroStepGraphsTest, ACopyFromTheHostIsTold) {
  ExpectClean(Run([] {
    const at::Tensor pinned = at::ones({kSize}).pin_memory();
    Toy toy([&](const at::Tensor& x, const at::Tensor&) {
      return x * pinned.to(x.device(), /*non_blocking=*/true);
    });
    toy.ExpectNote("it copies host memory to the device");
  }));
}

TEST_P(MicroStepGraphsTest, ACopyToTheHostIsTold) {
  ExpectClean(Run([] {
    const at::Tensor pinned = at::empty({kSize}).pin_memory();
    Toy toy([&](const at::Tensor& x, const at::Tensor&) {
      pinned.copy_(x.detach()[0], /*non_blocking=*/true);
      return x;
    });
    toy.ExpectNote("it copies results to the host");
  }));
}

TEST_P(MicroStepGraphsTest, ValuesWithinAUnitAreTold) {
  ExpectClean(Run([] {
    Toy toy([](const at::Tensor& x, const at::Tensor& host) {
      return x + kernels::ToDevice(host, x.device());
    });
    toy.ExpectNote(
        "values of the host are brought to the device within unit 1");
  }));
}

// A tensor that its owner replaces between micro-steps is kept if that is told;
// else repeated work would read what is freed.
TEST_P(MicroStepGraphsTest, CachesAreKept) {
  for (const bool told : {true, false}) {
    const Outcome outcome = Run([told] {
      at::Tensor cache;
      const auto renew = [&] {
        cache = at::full({kSize}, 1.5, at::device(at::kCUDA));
      };
      renew();
      Toy toy([&](const at::Tensor& x, const at::Tensor&) { return x * cache; },
              [&](const at::Tensor& x, const at::Tensor&) {
                WorkRecorder* const recorder = CurrentWorkRecorder();
                if (told && recorder != nullptr) recorder->Keep(cache);
                return x;
              });
      toy.Steps(8);
      CAPSTAN_CHECK(toy.notes.empty() && toy.recorded == 2);
      renew();
      toy.Steps(2);
    });
    if (told) {
      ExpectClean(outcome);
    } else {
      EXPECT_NE(outcome.status, 0) << "the poison isn't found";
    }
  }
}

// As on the default stream, which can't be captured.
TEST_P(MicroStepGraphsTest, ARecordingThatNeverBegan) {
  ExpectClean(Run([] {
    const std::unique_ptr<DeviceGraph> graph = NewCudaGraph();
    bool began = true;
    try {
      graph->Begin();
    } catch (const std::exception&) {
      began = false;
    }
    CAPSTAN_CHECK(!began);
    CAPSTAN_CHECK(graph->End().message() == "nothing was recorded");
  }));
}

// The oldest recordings go, and come back when they are wanted again.
TEST_P(MicroStepGraphsTest, KeepsSoMany) {
  ExpectClean(Run([] {
    Toy toy(Plain, nullptr, /*size=*/8);
    constexpr int kShapes = MicroStepGraphs::kMostGraphs / 2 + 1;
    for (int rows = 1; rows <= kShapes; ++rows) toy.Steps(3, rows);
    CAPSTAN_CHECK(toy.recorded == 2 * kShapes);
    toy.Steps(1, 1);
    CAPSTAN_CHECK(toy.recorded > 2 * kShapes);
    CAPSTAN_CHECK(toy.notes.empty());
  }));
}

// Where memory ends, runs go on as usual: rows that only fit without what the
// recordings keep.
TEST_P(MicroStepGraphsTest, WithoutMemory) {
  ExpectClean(Run(
      [] {
        Toy toy(
            [](const at::Tensor& x, const at::Tensor&) {
              return x.relu().sigmoid().mul(x).relu();
            },
            nullptr, /*size=*/1 << 18);
        toy.Steps(7, 2);
        CAPSTAN_CHECK(toy.notes.empty());
        toy.Steps(7, 6);
        CAPSTAN_CHECK(!toy.notes.empty());
        for (const std::string& note : toy.notes) {
          CAPSTAN_CHECK(note.find("train.cuda_graphs: ") == 0);
        }
      },
      "memory=128M"));
}

}  // namespace
}  // namespace capstan
