// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "base/random.h"
#include "tests/conformance/optimizer.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace conformance {
namespace {

constexpr int kSteps = 3;
// Parameters begin at multiples of this in a flat buffer; the gaps are padding.
// Set for the optimizer under test, so that its blocks divide it.
int64_t& Alignment() {
  static int64_t alignment = 32;
  return alignment;
}

std::vector<ParameterSpec> Specs() {
  std::vector<ParameterSpec> specs(4);
  specs[0].name = "a.weight";
  specs[0].shape = {37, 13};
  specs[1].name = "a.bias";
  specs[1].shape = {1};
  specs[2].name = "b.weight";
  specs[2].shape = {29, 3};
  // Large enough to be treated as large by who treats small ones apart.
  specs[3].name = "c.weight";
  specs[3].shape = {70, 61};
  return specs;
}

// What an optimizer may query of a model; it can't compute.
class SuiteModel final : public Model {
 public:
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t,
                            float*) const override {
    return absl::UnimplementedError("the suite's model has no values");
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::UnimplementedError("the suite's model has no config");
  }

 private:
  const std::vector<ParameterSpec> specs_ = Specs();
  const std::vector<std::string> units_ = {"all", "head"};
};

// Outlives what the optimizers under test keep of it.
const SuiteModel& TheModel() {
  static const SuiteModel model;
  return model;
}

// The whole model's layout, in the order of the specs.
std::vector<ParameterRange> Layout(int64_t* numel) {
  std::vector<ParameterRange> ranges;
  int64_t at = 0;
  for (int i = 0; i < static_cast<int>(Specs().size()); ++i) {
    const int64_t length = Specs()[i].numel();
    ranges.push_back({i, 0, length, at});
    at += (length + Alignment() - 1) / Alignment() * Alignment();
  }
  *numel = at;
  return ranges;
}

// Random values for parameters, zeros in padding.
at::Tensor Values(uint64_t key, float stddev) {
  int64_t numel = 0;
  const std::vector<ParameterRange> ranges = Layout(&numel);
  at::Tensor flat = at::zeros({numel}, at::kFloat);
  for (const ParameterRange& r : ranges) {
    FillNormal(key, r.offset, r.length, 0.0f, stddev,
               flat.mutable_data_ptr<float>() + r.offset);
  }
  return flat;
}

// A model's masters and state, cut into shards.
class Pieces {
 public:
  // cuts: ascending, from 0 to the total length; moved where the optimizer
  // doesn't allow them. working: dtype of the working copies; kFloat: none.
  Pieces(Optimizer& optimizer, std::vector<int64_t> cuts,
         at::ScalarType working = at::kFloat)
      : shapes_(StateShapesOf(optimizer, Specs())) {
    int64_t numel = 0;
    const std::vector<ParameterRange> all = Layout(&numel);
    for (int64_t& cut : cuts) cut = Allowed(optimizer, all, cut);
    const at::Tensor start = Values(1, 0.5f);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t begin = cuts[i];
      const int64_t end = cuts[i + 1];
      OptimizerShard shard;
      shard.master = start.narrow(0, begin, end - begin).clone();
      if (working != at::kFloat) shard.working = shard.master.to(working);
      for (const ParameterRange& r : all) {
        const int64_t low = std::max(begin, r.offset);
        const int64_t high = std::min(end, r.offset + r.length);
        if (low >= high) continue;
        shard.ranges.push_back(
            {r.parameter, r.begin + low - r.offset, high - low, low - begin});
      }
      begins_.push_back(begin);
      shards.push_back(std::move(shard));
    }
    const absl::Status status =
        SetUpOptimizer(optimizer, TheModel(), shards, &states);
    EXPECT_TRUE(status.ok()) << status;
  }

  // gradient: of the whole model.
  void Update(Optimizer& optimizer, int64_t number, double learning_rate,
              const at::Tensor& gradient, double scale = 1.0,
              const at::Tensor& device_scale = {}) {
    OptimizerStep step;
    step.step = number;
    step.learning_rate = learning_rate;
    step.gradient_scale = scale;
    step.device_scale = device_scale;
    for (size_t i = 0; i < shards.size(); ++i) {
      shards[i].gradient =
          gradient.narrow(0, begins_[i], shards[i].master.numel()).clone();
      optimizer.Update(step, Specs(), shards[i], absl::MakeSpan(states[i]));
    }
  }

  // kSteps with random gradients, some elements of which are zero.
  void Train(Optimizer& optimizer, int first = 1, int last = kSteps) {
    for (int step = first; step <= last; ++step) {
      const at::Tensor gradient = Values(10 + step, 2.0f).clamp_min(-1.0);
      Update(optimizer, step, optimizer.learning_rate(), gradient, 0.25);
    }
  }

  at::Tensor Master() const {
    std::vector<at::Tensor> all;
    for (const OptimizerShard& shard : shards) all.push_back(shard.master);
    return Joined(all);
  }
  at::Tensor Working() const {
    std::vector<at::Tensor> all;
    for (const OptimizerShard& shard : shards) all.push_back(shard.working);
    return Joined(all);
  }
  // By parameter.
  at::Tensor State(size_t k) const {
    std::vector<int64_t> begins;
    int64_t numel = 0;
    for (const ParameterSpec& spec : Specs()) {
      const int parameter = static_cast<int>(begins.size());
      begins.push_back(numel);
      numel += StateNumel(shapes_[k], parameter, spec.numel());
    }
    at::Tensor whole = at::zeros({numel}, states[0][k].options());
    for (size_t s = 0; s < shards.size(); ++s) {
      int index = 0;
      for (const ParameterRange& r : shards[s].ranges) {
        const StatePart part =
            StatePartOf(shapes_[k], shards[s].ranges, index++, r.offset,
                        r.offset + r.length);
        whole.narrow(0, begins[r.parameter] + part.begin, part.length)
            .copy_(states[s][k].narrow(0, part.offset, part.length));
      }
    }
    return whole;
  }

  std::vector<OptimizerShard> shards;
  OptimizerState states;

 private:
  // `cut`, or the last allowed cut before it.
  static int64_t Allowed(const Optimizer& optimizer,
                         const std::vector<ParameterRange>& all, int64_t cut) {
    int64_t block = 1;
    for (const OptimizerStateSpec& spec : optimizer.state_specs()) {
      if (spec.per_parameter == 0) block = std::max(block, spec.block);
    }
    for (const ParameterRange& r : all) {
      if (cut > r.offset && cut < r.offset + r.length &&
          optimizer.NeedsWhole(TheModel(), r.parameter)) {
        return r.offset;
      }
    }
    return cut / block * block;
  }

  at::Tensor Joined(const std::vector<at::Tensor>& pieces) const {
    int64_t numel = 0;
    Layout(&numel);
    at::Tensor whole = at::zeros({numel}, pieces[0].options());
    for (size_t i = 0; i < pieces.size(); ++i) {
      whole.narrow(0, begins_[i], pieces[i].numel()).copy_(pieces[i]);
    }
    return whole;
  }

  const std::vector<StateShape> shapes_;
  std::vector<int64_t> begins_;
};

std::vector<int64_t> Whole() {
  int64_t numel = 0;
  Layout(&numel);
  return {0, numel};
}

// One piece per rank, of nearly equal length.
std::vector<int64_t> ByRanks(int64_t ranks) {
  const int64_t numel = Whole()[1];
  std::vector<int64_t> cuts;
  for (int64_t i = 0; i <= ranks; ++i) cuts.push_back(numel * i / ranks);
  return cuts;
}

// Where padding is.
at::Tensor Padding() {
  int64_t numel = 0;
  at::Tensor padding;
  for (const ParameterRange& r : Layout(&numel)) {
    if (!padding.defined()) padding = at::ones({numel}, at::kBool);
    padding.narrow(0, r.offset, r.length).zero_();
  }
  return padding;
}

void ExpectEqual(const Pieces& got, const Pieces& want) {
  EXPECT_TRUE(got.Master().equal(want.Master()))
      << "masters differ by up to "
      << (got.Master() - want.Master()).abs().max().item<float>();
  for (size_t k = 0; k < want.states[0].size(); ++k) {
    EXPECT_TRUE(got.State(k).equal(want.State(k))) << "state " << k;
  }
}

TEST_P(OptimizerConformance, LearningRateIsAPositiveNumber) {
  EXPECT_TRUE(std::isfinite(optimizer().learning_rate()));
  EXPECT_GT(optimizer().learning_rate(), 0.0);
}

TEST_P(OptimizerConformance, StateNamesAreStable) {
  const std::vector<std::string> names = optimizer().state_names();
  Pieces pieces(optimizer(), Whole());
  pieces.Train(optimizer());
  EXPECT_EQ(optimizer().state_names(), names);
  EXPECT_EQ(New()->state_names(), names);
  const std::set<std::string> once(names.begin(), names.end());
  EXPECT_EQ(once.size(), names.size()) << "a name comes twice";
  EXPECT_EQ(once.count(""), 0);
  EXPECT_EQ(once.count("master"), 0) << "that is what checkpoints call weights";
}

// So that the curve is the same under every strategy and number of ranks.
TEST_P(OptimizerConformance, UpdatesAreTheSameHoweverTheModelIsCut) {
  const int64_t numel = Whole()[1];
  Pieces whole(optimizer(), Whole());
  whole.Train(optimizer());
  for (const std::vector<int64_t>& cuts :
       {ByRanks(2), ByRanks(3), ByRanks(4), ByRanks(numel / 7),
        std::vector<int64_t>{0, 1, 18, 35, 99, 480, 481, 482, numel},
        std::vector<int64_t>{0, 0, numel, numel}}) {
    SCOPED_TRACE(cuts.size() - 1);
    Pieces cut(optimizer(), cuts);
    cut.Train(optimizer());
    ExpectEqual(cut, whole);
  }
}

TEST_P(OptimizerConformance, PaddingStaysZero) {
  Pieces pieces(optimizer(), Whole());
  pieces.Train(optimizer());
  const at::Tensor padding = Padding();
  ASSERT_TRUE(padding.any().item<bool>());
  EXPECT_FALSE(((pieces.Master() != 0) & padding).any().item<bool>());
  for (const at::Tensor& state : pieces.states[0]) {
    if (state.numel() != padding.numel()) continue;
    EXPECT_FALSE(((state != 0) & padding).any().item<bool>());
  }
}

// Unscaling, normalisation and clipping are one factor. A power of two rounds
// nothing; another factor rounds the gradient by 2^-24, which may make the
// state of a few elements, if kept in few bits, another one.
TEST_P(OptimizerConformance, GradientScaleMultipliesTheGradient) {
  const double rate = optimizer().learning_rate();
  for (const double scale : {0.125, 0.3}) {
    SCOPED_TRACE(scale);
    Pieces given(optimizer(), Whole());
    Pieces before(optimizer(), Whole());
    for (int step = 1; step <= kSteps; ++step) {
      const at::Tensor gradient = Values(20 + step, 3.0f);
      given.Update(optimizer(), step, rate, gradient, scale);
      before.Update(optimizer(), step, rate, gradient * scale);
    }
    if (scale == 0.125) {
      ExpectEqual(given, before);
      continue;
    }
    const double moved =
        (before.Master() - Values(1, 0.5f)).abs().max().item<double>();
    const at::Tensor apart = (given.Master() - before.Master()).abs();
    EXPECT_LE((apart > 1e-5 * moved + 1e-7).sum().item<int64_t>(),
              apart.numel() / 500);
    EXPECT_LE(apart.max().item<double>(), 0.02 * moved);
  }
}

// On a GPU the core passes a part of the factor as a tensor.
TEST_P(OptimizerConformance, TheDeviceScaleMultipliesToo) {
  const double rate = optimizer().learning_rate();
  Pieces given(optimizer(), ByRanks(2));
  Pieces before(optimizer(), ByRanks(2));
  for (int step = 1; step <= kSteps; ++step) {
    const at::Tensor gradient = Values(50 + step, 3.0f);
    given.Update(optimizer(), step, rate, gradient, 0.5,
                 at::full({}, 0.25f, at::kFloat));
    before.Update(optimizer(), step, rate, gradient, 0.125);
  }
  ExpectEqual(given, before);
}

// This is how a step is skipped on a GPU, whatever the gradients are.
TEST_P(OptimizerConformance, ADeviceScaleThatIsNotFiniteSkips) {
  for (const float scale : {std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    Pieces pieces(optimizer(), ByRanks(2), at::kBFloat16);
    Pieces want(optimizer(), ByRanks(2), at::kBFloat16);
    pieces.Train(optimizer(), 1, 1);
    want.Train(optimizer(), 1, 1);
    const at::Tensor gradient = Values(60, 1.0f);
    gradient[3].fill_(std::numeric_limits<float>::quiet_NaN());
    gradient[5].fill_(std::numeric_limits<float>::infinity());
    pieces.Update(optimizer(), 2, optimizer().learning_rate(), gradient, 1.0,
                  at::full({}, scale, at::kFloat));
    ExpectEqual(pieces, want);
    EXPECT_TRUE(pieces.Working().equal(want.Working()));
  }
}

TEST_P(OptimizerConformance, TakesAModelAndSaysWhatItsStateIs) {
  OptimizerRequest request;
  request.model = &TheModel();
  const absl::Status status = CheckOptimizer(optimizer(), request);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(OptimizerConformance, TheWorkingCopyIsTheRoundedMaster) {
  Pieces plain(optimizer(), Whole());
  plain.Train(optimizer());
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    Pieces pieces(optimizer(), ByRanks(3), type);
    pieces.Train(optimizer());
    ExpectEqual(pieces, plain);
    EXPECT_TRUE(pieces.Working().equal(pieces.Master().to(type)));
  }
}

// Gradients come in the precision's reduce dtype.
TEST_P(OptimizerConformance, TakesGradientsOf16Bits) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    Pieces narrow(optimizer(), Whole());
    Pieces wide(optimizer(), Whole());
    for (int step = 1; step <= kSteps; ++step) {
      const at::Tensor gradient = Values(30 + step, 1.0f).to(type);
      const double rate = optimizer().learning_rate();
      narrow.Update(optimizer(), step, rate, gradient);
      wide.Update(optimizer(), step, rate, gradient.to(at::kFloat));
    }
    ExpectEqual(narrow, wide);
  }
}

// As after a resume: a new optimizer with other tensors.
TEST_P(OptimizerConformance, GoesOnFromItsState) {
  Pieces straight(optimizer(), Whole());
  straight.Train(optimizer());
  for (int done = 1; done < kSteps; ++done) {
    Pieces first(optimizer(), Whole());
    first.Train(optimizer(), 1, done);
    const std::unique_ptr<Optimizer> other = New();
    Pieces then(*other, Whole());
    then.shards[0].master.copy_(first.shards[0].master);
    for (size_t k = 0; k < then.states[0].size(); ++k) {
      then.states[0][k].copy_(first.states[0][k]);
    }
    then.Train(*other, done + 1, kSteps);
    ExpectEqual(then, straight);
  }
}

TEST_P(OptimizerConformance, ALearningRateOfZeroLeavesTheMasters) {
  Pieces pieces(optimizer(), ByRanks(2), at::kBFloat16);
  const at::Tensor before = pieces.Master();
  for (int step = 1; step <= kSteps; ++step) {
    pieces.Update(optimizer(), step, 0.0, Values(40 + step, 1.0f));
  }
  EXPECT_TRUE(pieces.Master().equal(before));
  EXPECT_TRUE(pieces.Working().equal(before.to(at::kBFloat16)));
}

TEST_P(OptimizerConformance, AGradientOfZeroIsHarmless) {
  Pieces pieces(optimizer(), Whole());
  const at::Tensor zero = at::zeros({Whole()[1]}, at::kFloat);
  for (int step = 1; step <= kSteps; ++step) {
    pieces.Update(optimizer(), step, optimizer().learning_rate(), zero);
  }
  EXPECT_TRUE(at::isfinite(pieces.Master()).all().item<bool>());
}

// On |p|^2 / 2, whose gradient is p.
TEST_P(OptimizerConformance, GoesDownhill) {
  Pieces pieces(optimizer(), Whole());
  const double before = pieces.Master().norm().item<double>();
  for (int step = 1; step <= 20; ++step) {
    pieces.Update(optimizer(), step, optimizer().learning_rate(),
                  pieces.Master());
  }
  EXPECT_LT(pieces.Master().norm().item<double>(), before);
}

}  // namespace

void OptimizerConformance::SetUp() {
  PluginConformance::SetUp();
  if (HasFatalFailure()) return;
  Alignment() = 32;
  for (const OptimizerStateSpec& spec : optimizer().state_specs()) {
    if (spec.per_parameter == 0) {
      Alignment() = std::max(Alignment(), spec.block);
    }
  }
}

}  // namespace conformance
}  // namespace capstan
