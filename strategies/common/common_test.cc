// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/lost_peer.h"
#include "plugins/sdk/idle_for_test.h"
#include "strategies/common/flat_layout.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/gradient_buckets.h"

namespace capstan {
namespace {

std::vector<ParameterSpec> Specs() {
  return {{"a", {3, 5}, 0, true},
          {"frozen", {7}, 0, false},
          {"b", {40}, 1, true},
          {"c", {1}, 2, true}};
}

TEST(FlatLayoutTest, ParametersAreAlignedAndInBackwardOrder) {
  const FlatLayout layout = LayOut(Specs(), BackwardOrder(Specs(), true));
  ASSERT_EQ(layout.ranges.size(), 3);
  EXPECT_EQ(layout.ranges[0].parameter, 3);
  EXPECT_EQ(layout.ranges[1].parameter, 2);
  EXPECT_EQ(layout.ranges[2].parameter, 0);
  int64_t end = 0;
  for (const ParameterRange& range : layout.ranges) {
    EXPECT_EQ(range.offset % kFlatAlignment, 0);
    EXPECT_GE(range.offset, end);
    end = range.offset + range.length;
  }
  EXPECT_GE(layout.numel, end);
  EXPECT_EQ(BackwardOrder(Specs(), false), std::vector<int>({1}));
}

TEST(FlatLayoutTest, BucketsCoverTheLayoutAndKeepTheirCaps) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 20; ++i) {
    specs.push_back({"p", {kFlatAlignment * (1 + i % 3)}, 0, true});
  }
  const FlatLayout layout = LayOut(specs, BackwardOrder(specs, true));
  const int64_t unit = kFlatAlignment * 4;
  const std::vector<Bucket> buckets =
      CutBuckets(layout, 3 * unit / 4, 6 * unit / 4);
  int64_t at = 0;
  size_t parameters = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(buckets[i].begin, at);
    EXPECT_LE((buckets[i].end - buckets[i].begin) * 4,
              i == 0 ? 3 * unit : 6 * unit);
    at = buckets[i].end;
    parameters += buckets[i].parameters.size();
  }
  EXPECT_EQ(at, layout.numel);
  EXPECT_EQ(parameters, specs.size());
  EXPECT_GT(buckets.size(), 4);
}

TEST(FlatLayoutTest, ALargeParameterGetsABucketOfItsOwn) {
  const std::vector<ParameterSpec> specs = {{"small", {32}, 0, true},
                                            {"large", {3200}, 0, true}};
  const FlatLayout layout = LayOut(specs, {0, 1});
  const std::vector<Bucket> buckets = CutBuckets(layout, 64, 64);
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_EQ(buckets[1].end - buckets[1].begin, 3200);
}

TEST(FlatLayoutTest, RankSlicesCoverEachElementOnce) {
  for (int64_t numel : {0, 1, 31, 32, 33, 1000, 12345}) {
    for (int size : {1, 2, 3, 4, 7}) {
      int64_t at = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto [begin, end] = RankSlice(numel, rank, size);
        EXPECT_EQ(begin, at);
        EXPECT_LE(begin, end);
        at = end;
      }
      EXPECT_EQ(at, numel);
    }
  }
}

// Matrices of very different sizes, and vectors that may be cut.
std::vector<ParameterSpec> WholeSpecs() {
  std::vector<ParameterSpec> specs;
  for (int unit = 0; unit < 6; ++unit) {
    specs.push_back({"vector", {33}, unit});
    specs.push_back({"small", {7, 11}, unit});
    specs.push_back({"large", {40 + unit, 11}, unit});
  }
  return specs;
}

LayoutRules WholeMatrices() {
  LayoutRules rules;
  for (const ParameterSpec& spec : WholeSpecs()) {
    rules.whole.push_back(spec.shape.size() == 2);
  }
  return rules;
}

// The ranges of all ranks, from the layout's cuts.
std::vector<ParameterRange> RangesOfRanks(const FlatLayout& layout,
                                          const std::vector<Bucket>& buckets,
                                          int shards) {
  std::vector<ParameterRange> all;
  for (const Bucket& bucket : buckets) {
    EXPECT_EQ(bucket.numel() % shards, 0);
    const int64_t length = bucket.numel() / shards;
    for (int r = 0; r < shards; ++r) {
      const int64_t begin = bucket.begin + r * length;
      for (const ParameterRange& range :
           CutRanges(layout, begin, begin + length)) {
        all.push_back(range);
      }
    }
  }
  return all;
}

TEST(WholeLayoutTest, NoSliceCutsWhatMustStayWhole) {
  const std::vector<ParameterSpec> specs = WholeSpecs();
  for (const int64_t multiple : {32, 256}) {
    LayoutRules rules = WholeMatrices();
    rules.multiple = multiple;
    for (const int shards : {1, 2, 3, 4, 20}) {
      FlatLayout layout;
      const std::vector<Bucket> buckets =
          LayOutBuckets(specs, rules, shards, 100, 1000, &layout);
      std::vector<int64_t> seen(specs.size(), 0);
      for (const ParameterRange& r : RangesOfRanks(layout, buckets, shards)) {
        EXPECT_EQ(r.begin % multiple, 0);
        EXPECT_EQ(r.offset % multiple, 0);
        EXPECT_EQ(r.begin, seen[r.parameter]);
        seen[r.parameter] += r.length;
        if (rules.Whole(r.parameter)) {
          EXPECT_EQ(r.length, specs[r.parameter].numel());
        }
      }
      for (size_t i = 0; i < specs.size(); ++i) {
        EXPECT_EQ(seen[i], specs[i].numel());
      }
    }
  }
}

// Contiguous in the buffer, each parameter in one bucket, in the order in which
// backward completes them.
TEST(WholeLayoutTest, BucketsCoverTheLayout) {
  FlatLayout layout;
  std::vector<Bucket> buckets =
      LayOutBuckets(WholeSpecs(), WholeMatrices(), 3, 100, 1000, &layout);
  size_t parameters = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    parameters += buckets[b].parameters.size();
    if (b == 0) continue;
    EXPECT_LT(buckets[b].parameters.back(), buckets[b - 1].parameters.back());
  }
  EXPECT_EQ(parameters, WholeSpecs().size());
  std::sort(buckets.begin(), buckets.end(),
            [](const Bucket& a, const Bucket& b) { return a.begin < b.begin; });
  int64_t at = 0;
  for (const Bucket& bucket : buckets) {
    EXPECT_EQ(bucket.begin, at);
    at = bucket.end;
  }
  EXPECT_EQ(at, layout.numel);
}

// A rest of the matrices doesn't get a bucket that is mostly padding.
TEST(WholeLayoutTest, NoBucketHasFewerMatricesThanShards) {
  const LayoutRules rules = WholeMatrices();
  FlatLayout layout;
  int buckets = 0;
  for (const Bucket& bucket :
       LayOutBuckets(WholeSpecs(), rules, 5, 100, 1000, &layout)) {
    if (!rules.Whole(bucket.parameters[0])) continue;
    ++buckets;
    EXPECT_GE(bucket.parameters.size(), 5);
  }
  EXPECT_EQ(buckets, 2);
}

TEST(WholeLayoutTest, WithoutARuleItIsTheLayoutOfBuckets) {
  const std::vector<ParameterSpec> specs = WholeSpecs();
  FlatLayout want = LayOut(specs, BackwardOrder(specs, true));
  std::vector<Bucket> buckets = CutBuckets(want, 100, 1000);
  PadBuckets(3, &want, &buckets);
  FlatLayout got;
  const std::vector<Bucket> got_buckets =
      LayOutBuckets(specs, LayoutRules(), 3, 100, 1000, &got);
  EXPECT_EQ(got.numel, want.numel);
  ASSERT_EQ(got.ranges.size(), want.ranges.size());
  for (size_t i = 0; i < want.ranges.size(); ++i) {
    EXPECT_EQ(got.ranges[i].parameter, want.ranges[i].parameter);
    EXPECT_EQ(got.ranges[i].offset, want.ranges[i].offset);
  }
  ASSERT_EQ(got_buckets.size(), buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    EXPECT_EQ(got_buckets[b].begin, buckets[b].begin);
    EXPECT_EQ(got_buckets[b].end, buckets[b].end);
  }
}

// Units of two matrices on three ranks: the load is about equal.
TEST(WholeLayoutTest, LoadsAreBalancedOverUnits) {
  const std::vector<ParameterSpec> specs = WholeSpecs();
  std::vector<int64_t> loads(3, 0);
  for (int unit = 0; unit < 6; ++unit) {
    LayOutWhole(specs, {3 * unit + 1, 3 * unit + 2}, kFlatAlignment, &loads);
  }
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  EXPECT_LE(*most - *least, 45 * 11);
  EXPECT_GT(*least, 0);
}

// Three parameters whose gradients are known: d(sum(w * x))/dw = x.
class GradientBucketsTest : public ::testing::Test {
 protected:
  void Make(c10::ScalarType dtype) {
    const std::vector<ParameterSpec> specs = Specs();
    layout_ = LayOut(specs, BackwardOrder(specs, true));
    flat_ = at::full({layout_.numel}, 99.0, at::kFloat);
    for (const ParameterSpec& spec : specs) {
      parameters_.push_back(at::ones(spec.shape, dtype));
      parameters_.back().set_requires_grad(spec.trainable);
    }
    gradients_ = std::make_unique<GradientBuckets>(
        specs, layout_, CutBuckets(layout_, 1, 1), parameters_,
        GradientBuckets::Options{at::kFloat, flat_, [this](int bucket) {
                                   ready_.push_back(bucket);
                                   gradients_->Take(bucket);
                                 }});
  }

  // A micro-step that uses parameter a, and b if asked, with factor x.
  void MicroStep(int index, int count, double x, bool use_b) {
    gradients_->Begin(index == 0, index + 1 == count);
    at::Tensor loss = (parameters_[0] * x).sum();
    if (use_b) loss = loss + (parameters_[2] * (2 * x)).sum();
    torch::autograd::backward({loss}, {});
  }

  at::Tensor Gradient(int parameter) {
    for (const ParameterRange& range : layout_.ranges) {
      if (range.parameter == parameter) {
        return flat_.narrow(0, range.offset, range.length);
      }
    }
    return at::Tensor();
  }

  FlatLayout layout_;
  at::Tensor flat_;
  std::vector<at::Tensor> parameters_;
  std::vector<int> ready_;
  std::unique_ptr<GradientBuckets> gradients_;
};

TEST_F(GradientBucketsTest, CollectsAccumulatesAndZeroesTheUnused) {
  Make(at::kFloat);
  for (int step = 0; step < 2; ++step) {  // the second starts afresh
    ready_.clear();
    MicroStep(0, 2, 3.0, /*use_b=*/true);
    EXPECT_TRUE(ready_.empty());
    MicroStep(1, 2, 4.0, /*use_b=*/true);
    gradients_->Finish();
    EXPECT_EQ(ready_, std::vector<int>({0, 1, 2}));
    EXPECT_TRUE(at::equal(Gradient(0), at::full({15}, 7.0)));
    EXPECT_TRUE(at::equal(Gradient(2), at::full({40}, 14.0)));
    EXPECT_TRUE(at::equal(Gradient(3), at::zeros({1})));
  }
  // Autograd must find nothing to add to.
  EXPECT_FALSE(parameters_[0].grad().defined());
}

TEST_F(GradientBucketsTest, SumsInTheWiderTypeOfTheBuffer) {
  Make(at::kBFloat16);
  // 256 + 1 is not a bfloat16, but a float32.
  MicroStep(0, 2, 256.0, /*use_b=*/false);
  MicroStep(1, 2, 1.0, /*use_b=*/false);
  gradients_->Finish();
  EXPECT_TRUE(at::equal(Gradient(0), at::full({15}, 257.0)));
  EXPECT_FALSE(parameters_[0].grad().defined());
}

TEST_F(GradientBucketsTest, BucketsAreReadyInOrderWhateverBackwardsOrder) {
  Make(at::kFloat);
  MicroStep(0, 1, 1.0, /*use_b=*/true);
  // Bucket 0 holds the unused c and blocks the others.
  EXPECT_TRUE(ready_.empty());
  gradients_->Finish();
  EXPECT_EQ(ready_, std::vector<int>({0, 1, 2}));
}

TEST_F(GradientBucketsTest, FinishAfterAnAbandonedStepCallsForAllBuckets) {
  Make(at::kFloat);
  gradients_->Begin(/*first=*/true, /*last=*/false);
  gradients_->Finish();
  EXPECT_EQ(ready_.size(), 3);
  EXPECT_TRUE(at::equal(Gradient(0), at::zeros({15})));
}

// A rank whose data fails in a later step must still take part in the
// collectives.
TEST_F(GradientBucketsTest, AStepThatOnlyBeganCallsForAllBucketsAgain) {
  Make(at::kFloat);
  MicroStep(0, 1, 1.0, /*use_b=*/true);
  gradients_->Finish();
  ready_.clear();
  gradients_->Begin(/*first=*/true, /*last=*/true);
  gradients_->Finish();
  EXPECT_EQ(ready_, std::vector<int>({0, 1, 2}));
}

double SumOf(const at::Tensor& x, int64_t begin, int64_t end) {
  return SquaredSum(x, begin, end).item<double>();
}

// Element i of parameter p is p + i / 8, which 16 bits must round.
class CountingModel final : public Model {
 public:
  explicit CountingModel(int64_t numel)
      : specs_({{"a", {numel}, 0, false}, {"b", {numel}, 0, false}}) {}
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int index, uint64_t, int64_t begin, int64_t count,
                            float* out) const override {
    for (int64_t i = 0; i < count; ++i) out[i] = Value(index, begin + i);
    longest_ = std::max(longest_, count);
    return begin < fails_from_ ? absl::OkStatus()
                               : absl::DataLossError("no more");
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }

  static float Value(int index, int64_t i) {
    return static_cast<float>(index) + static_cast<float>(i) / 8.0f;
  }
  int64_t longest() const { return longest_; }
  void FailFrom(int64_t begin) { fails_from_ = begin; }

 private:
  const std::vector<ParameterSpec> specs_;
  const std::vector<std::string> units_ = {"all"};
  mutable int64_t longest_ = 0;
  int64_t fails_from_ = std::numeric_limits<int64_t>::max();
};

// A rank of two on two hosts. What rank 0 sends is `sent`.
class FarRanks : public IdleGroup {
 public:
  FarRanks(int rank, at::Tensor* sent, double failed)
      : IdleGroup(rank, 2), sent_(*sent), failed_(failed) {}
  std::string backend() const override { return "shm+gloo"; }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    EXPECT_EQ(root, 0);
    at::Tensor part = sent_.narrow(0, at_, tensor.numel());
    at::Tensor received = tensor;
    if (rank() == 0) {
      part.copy_(tensor);
    } else {
      received.copy_(part);
    }
    at_ += tensor.numel();
    return std::make_unique<IdleWork>();
  }
  // With the failure of the other.
  void AllReduceHost(absl::Span<double> values) override {
    values[0] += failed_;
  }
  int64_t sent() const { return at_; }

 private:
  at::Tensor& sent_;
  const double failed_;
  int64_t at_ = 0;
};

TEST(FillInitialValuesTest, OneRankReadsAndTheOthersTakeFromIt) {
  constexpr int64_t kNumel = 20000000;  // several broadcasts
  const std::vector<ParameterRange> ranges = {{0, 0, kNumel, 0}};
  at::Tensor sent = at::zeros({kNumel});
  for (const int rank : {0, 1}) {
    CountingModel model(kNumel);
    if (rank == 1) model.FailFrom(0);
    FarRanks group(rank, &sent, /*failed=*/0);
    StrategyContext context;
    context.model = &model;
    context.group = &group;
    const at::Tensor flat = at::zeros({kNumel});
    const absl::Status status = FillOnAllRanks(context, ranges, flat);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(group.sent(), kNumel);
    EXPECT_EQ(model.longest() > 0, rank == 0);
    const float* values = flat.const_data_ptr<float>();
    for (const int64_t i : {int64_t{0}, int64_t{17000001}, kNumel - 1}) {
      EXPECT_EQ(values[i], CountingModel::Value(0, i)) << rank;
    }
  }
  // What rank 0 can't read is an error of all, and nobody waits for it.
  for (const int rank : {0, 1}) {
    CountingModel model(kNumel);
    model.FailFrom(0);
    FarRanks group(rank, &sent, /*failed=*/rank == 1);
    StrategyContext context;
    context.model = &model;
    context.group = &group;
    const absl::Status status =
        FillOnAllRanks(context, ranges, at::zeros({kNumel}));
    EXPECT_EQ(absl::IsDataLoss(status), rank == 0);
    EXPECT_EQ(IsLostPeer(status), rank == 1);
    EXPECT_EQ(group.sent(), 0);
  }
}

TEST(FillInitialValuesTest, SixteenBitsAreRoundedOnceInPieces) {
  at::set_num_threads(1);
  constexpr int64_t kNumel = 200003;
  CountingModel model(kNumel);
  StrategyContext context;
  context.model = &model;
  const std::vector<ParameterRange> ranges = {{1, 5, kNumel - 5, 3},
                                              {0, 0, 7, kNumel}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor flat = at::zeros({kNumel + 16}, dtype);
    ASSERT_TRUE(
        FillInitialValues(*context.model, context.seed, ranges, flat).ok());
    const at::Tensor wanted = at::zeros({kNumel + 16});
    for (const ParameterRange& range : ranges) {
      for (int64_t i = 0; i < range.length; ++i) {
        wanted.mutable_data_ptr<float>()[range.offset + i] =
            CountingModel::Value(range.parameter, range.begin + i);
      }
    }
    EXPECT_TRUE(flat.equal(wanted.to(dtype))) << dtype;
  }
  CountingModel narrow(kNumel);
  context.model = &narrow;
  const at::Tensor flat = at::zeros({kNumel + 16}, at::kBFloat16);
  ASSERT_TRUE(
      FillInitialValues(*context.model, context.seed, ranges, flat).ok());
  EXPECT_LE(narrow.longest(), 1 << 16);  // no tensor of floats beside it
  narrow.FailFrom(kNumel / 2);
  EXPECT_TRUE(absl::IsDataLoss(
      FillInitialValues(*context.model, context.seed, ranges, flat)));
}

TEST(SquaredSumTest, MatchesDoublePrecision) {
  const at::Tensor x = at::rand({200003}) - 0.5;
  const double want = x.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(SumOf(x, 0, x.numel()), want, 1e-9 * want);
  const double parts = SumOf(x, 0, 77777) + SumOf(x, 77777, 200003);
  EXPECT_NEAR(parts, want, 1e-9 * want);
  EXPECT_EQ(SumOf(x, 5, 5), 0.0);
}

TEST(SquaredSumTest, TakesSixteenBits) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = (at::rand({200003}) - 0.5).to(type);
    const double want = x.to(at::kDouble).square().sum().item<double>();
    const double parts = SumOf(x, 0, 77777) + SumOf(x, 77777, 200003);
    EXPECT_NEAR(parts, want, 1e-9 * want);
  }
}

TEST(SquaredSumTest, LargeValuesDontOverflowAndNonFiniteOnesShow) {
  at::Tensor x = at::full({100}, 1e30);
  EXPECT_NEAR(SumOf(x, 0, 100) / 1e62, 1.0, 1e-5);
  x[50] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOf(x, 0, 100)));
  x[50] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(SumOf(x, 0, 100)));
}

}  // namespace
}  // namespace capstan
