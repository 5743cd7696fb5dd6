// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/muon.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/optimizer/normal_for_test.h"
#include "kernels/optimizer/peak_of_cpu_for_test.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kMatrices = 2, kRows = 40, kColumns = 70;
constexpr int64_t kNumel = kMatrices * kRows * kColumns;

MuonOptions Options() {
  MuonOptions o;
  o.learning_rate = 0.02;
  o.weight_decay = 0.1;
  o.gradient_scale = 0.25;
  o.newton_schulz.steps = JordanSteps(5);
  return o;
}

MuonBuffers Buffers(bool rows) {
  MuonBuffers b;
  b.rows = kRows;
  b.columns = kColumns;
  b.parameter = Normal(1, kNumel, 0.3f);
  b.momentum = at::zeros({kNumel});
  if (rows) b.row_moment = at::zeros({kMatrices * kRows});
  return b;
}

void ExpectClose(const MuonBuffers& a, const MuonBuffers& b, double bound) {
  EXPECT_LE((a.parameter - b.parameter).abs().max().item<float>(), bound);
  EXPECT_LE((a.momentum - b.momentum).abs().max().item<float>(), 1e-6);
  if (a.row_moment.defined()) {
    EXPECT_TRUE(a.row_moment.allclose(b.row_moment, 1e-3, 1e-8));
  }
}

// Ways differ by rounding alone.
TEST(MuonStepTest, IsWhatLibTorchComputes) {
  for (const bool rows : {false, true}) {
    for (const bool nesterov : {false, true}) {
      MuonOptions o = Options();
      o.nesterov = nesterov;
      o.rate = nesterov ? MuonRate::kOriginal : MuonRate::kMatchRmsAdamW;
      const MuonBuffers ours = Buffers(rows);
      const MuonBuffers theirs = Buffers(rows);
      for (int step = 1; step <= 3; ++step) {
        MuonBuffers a = ours, b = theirs;
        a.gradient = b.gradient = Normal(10 + step, kNumel, 2.0f);
        MuonStep(o, a);
        MuonByLibTorch(o, b);
      }
      ExpectClose(ours, theirs, 1e-5);
    }
  }
}

// A plain matrix moves by lr * 1 at most, whatever the gradient's size.
TEST(MuonStepTest, TheUpdatesSizeIsTheRates) {
  for (const float size : {1e-4f, 1.0f, 1e4f}) {
    const MuonOptions o = [] {
      MuonOptions options = Options();
      options.weight_decay = 0.0;
      return options;
    }();
    MuonBuffers b = Buffers(false);
    const at::Tensor before = b.parameter.clone();
    b.gradient = Normal(3, kNumel, size);
    MuonStep(o, b);
    const double moved = (b.parameter - before).norm().item<double>();
    const double most =
        o.learning_rate * std::sqrt(static_cast<double>(kMatrices * kRows));
    EXPECT_LT(moved, 1.2 * most);
    EXPECT_GT(moved, 0.7 * most);
  }
}

// NorMuon: as far as with Muon, but all rows alike once their moments are
// known.
TEST(MuonStepTest, RowsMoveAlikeAndTheMatrixAsFar) {
  const auto moved = [](bool rows) {
    MuonOptions o = Options();
    o.weight_decay = 0.0;
    MuonBuffers b = Buffers(rows);
    b.gradient = Normal(3, kNumel, 1.0f);
    b.gradient.view({kMatrices, kRows, kColumns}).narrow(1, 0, 3).mul_(1e-3);
    const at::Tensor before = b.parameter.clone();
    MuonStep(o, b);
    return (b.parameter - before).view({kMatrices, kRows, kColumns});
  };
  const at::Tensor with = moved(true), without = moved(false);
  for (int i = 0; i < kMatrices; ++i) {
    EXPECT_NEAR(with[i].norm().item<double>(), without[i].norm().item<double>(),
                1e-4);
    const at::Tensor lengths = with[i].norm(2, at::IntArrayRef{1}, false);
    EXPECT_NEAR(lengths.min().item<double>(), lengths.max().item<double>(),
                1e-3 * lengths.max().item<double>());
    const at::Tensor plain = without[i].norm(2, at::IntArrayRef{1}, false);
    EXPECT_LT(plain.min().item<double>(), 0.9 * plain.max().item<double>());
  }
}

TEST(MuonStepTest, ADeviceScaleThatIsNotFiniteChangesNothing) {
  for (const bool libtorch : {false, true}) {
    MuonBuffers b = Buffers(true);
    b.gradient = at::full({kNumel}, std::numeric_limits<float>::quiet_NaN());
    b.working = b.parameter.to(at::kBFloat16);
    b.device_scale = at::full({}, std::numeric_limits<float>::infinity());
    libtorch ? MuonByLibTorch(Options(), b) : MuonStep(Options(), b);
    ExpectClose(b, Buffers(true), 0.0);
    EXPECT_TRUE(b.working.equal(b.parameter.to(at::kBFloat16)));
  }
}

// On a GPU the same operators run, in float32, too, where on the CPU products
// are our own.
TEST(MuonStepTest, HoldsWhatIsPlanned) {
  const struct {
    int64_t matrices, rows, columns;
  } kShapes[] = {
      {1, 256, 256}, {1, 256, 240}, {1, 64, 512}, {1, 512, 64}, {3, 128, 100}};
  for (const auto& [matrices, rows, columns] : kShapes) {
    for (const bool libtorch : {false, true}) {
      for (const bool normuon : {false, true}) {
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          if (libtorch && dtype == at::kFloat) continue;
          const int64_t numel = matrices * rows * columns;
          MuonOptions o = Options();
          o.newton_schulz.dtype = dtype;
          MuonBuffers b;
          b.rows = rows;
          b.columns = columns;
          b.parameter = at::zeros({numel});
          b.momentum = at::zeros({numel});
          b.gradient = at::full({numel}, 0.5f).to(dtype);
          if (normuon) b.row_moment = at::zeros({matrices * rows});
          b.device_scale = at::full({}, 1.0f);
          const int64_t planned =
              MuonWorkspace(o.newton_schulz, numel, rows, columns, libtorch);
          const PeakOfCpu counted;
          libtorch ? MuonByLibTorch(o, b) : MuonStep(o, b);
          EXPECT_NEAR(counted.peak(), planned, 0.1 * planned)
              << matrices << " x " << rows << " x " << columns << " " << dtype
              << (libtorch ? " by LibTorch" : "")
              << (normuon ? ", by rows" : "");
        }
      }
    }
  }
}

TEST(MuonStepTest, TakesGradientsOf16BitsAndWritesTheWorkingCopy) {
  MuonBuffers narrow = Buffers(false), wide = Buffers(false);
  narrow.gradient = Normal(5, kNumel, 1.0f).to(at::kBFloat16);
  wide.gradient = narrow.gradient.to(at::kFloat);
  narrow.working = at::zeros({kNumel}, at::kHalf);
  MuonStep(Options(), narrow);
  MuonStep(Options(), wide);
  EXPECT_TRUE(narrow.parameter.equal(wide.parameter));
  EXPECT_TRUE(narrow.working.equal(narrow.parameter.to(at::kHalf)));
}

}  // namespace
}  // namespace capstan::kernels
