// SPDX-License-Identifier: Apache-2.0
//
// The masks of a batch, and their weights in the losses.
#include "plugins/llada/masked_diffusion/noise.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "plugins/llada/masked_diffusion/objective_fixture.h"

namespace capstan::masked_diffusion {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMask = FakeModel::kMask;

using NoiseTest = MaskedDiffusionTest;

TEST_F(NoiseTest, TokensAreHiddenAndHeldAgainstThemselves) {
  const Batch batch = Rows(0, 4, 32);
  const at::Tensor hidden = Hidden(batch);
  const at::Tensor& ids = batch.at("input_ids");
  EXPECT_GT(hidden.sum().item<int64_t>(), 0);
  EXPECT_LT(hidden.sum().item<int64_t>(), 4 * 32);
  EXPECT_TRUE(input().tokens.equal(ids.masked_fill(hidden, kMask)));
  EXPECT_TRUE(
      targets().tokens.equal(ids.masked_fill(hidden.logical_not(), -100)));
  EXPECT_FALSE(input().positions.defined());
  EXPECT_TRUE(input().sample_positions.equal(batch.at("sample_position")));
}

// L = 1 / (B T) * sum over hidden of CE / p.
TEST_F(NoiseTest, PretrainCountsAllTokens) {
  const LossSum loss = Compute(Rows(0, 4, 32));
  EXPECT_EQ(loss.count, 4 * 32);
  EXPECT_EQ(loss.tokens, 4 * 32);
  EXPECT_EQ(loss.padding, 0);
  const at::Tensor hidden = targets().tokens.ge(0);
  EXPECT_EQ(loss.trained, hidden.sum().item<int64_t>());
  EXPECT_NEAR(loss.sum.item<double>(),
              std::log(FakeModel::kVocab) *
                  (hidden * targets().weights).sum().item<double>(),
              1e-3);
  // One p per row.
  for (int64_t row = 0; row < 4; ++row) {
    const at::Tensor weights = targets().weights[row];
    EXPECT_EQ(weights.min().item<double>(), weights.max().item<double>());
    EXPECT_GE(weights.min().item<double>(), 1.0);
    EXPECT_LE(weights.min().item<double>(), 1000.001);
  }
}

// Targets made on the host are those made on the device.
TEST_F(NoiseTest, TargetsOnTheHostAreTheSame) {
  for (const Config::Loss kind : {Config::PRETRAIN, Config::MASKED_MEAN}) {
    const Batch batch = Rows(0, 4, 32);
    const NoiseKey key = NoiseKey::ForTraining(5);
    const Layout layout = LayoutOf(batch, key, 0.0);
    const Noise noise = DrawNoise(layout, key, 1e-3);
    const HiddenBatch there = Hide(batch, layout, noise, kind, kMask);
    const HiddenBatch here =
        Hide(batch, layout, noise, kind, kMask, /*host_targets=*/true);
    EXPECT_TRUE(here.input.tokens.equal(there.input.tokens));
    EXPECT_TRUE(here.targets.tokens.equal(there.targets.tokens));
    EXPECT_TRUE(here.targets.tokens.ge(0).any().item<bool>());
    ASSERT_EQ(here.targets.weights.defined(), kind == Config::PRETRAIN);
    if (kind == Config::PRETRAIN) {
      EXPECT_TRUE(here.targets.weights.equal(there.targets.weights));
    }
  }
}

TEST_F(NoiseTest, MaskedMeanCountsHiddenTokens) {
  SetConfig(Config::MASKED_MEAN, 0.0);
  const LossSum loss = Compute(Rows(0, 4, 32));
  EXPECT_FALSE(targets().weights.defined());
  EXPECT_EQ(loss.count, targets().tokens.ge(0).sum().item<int64_t>());
}

TEST_F(NoiseTest, SftCountsAnswersAndDividesByTheirLength) {
  SetConfig(Config::PRETRAIN, 0.0);
  Batch batch = Rows(0, 3, 8);
  batch["labels"] = batch["input_ids"].clone();
  batch["labels"][0].slice(0, 0, 6).fill_(-100);  // an answer of 2
  batch["labels"][1].slice(0, 0, 3).fill_(-100);  // of 5
  batch["labels"][2].fill_(-100);                 // of none
  EXPECT_EQ(Compute(batch).count, 7);
  const at::Tensor inverse_p = targets().weights;
  batch[kTokenCounts] = at::tensor({8, 8, 4}, at::kLong);
  SetConfig(Config::SFT, 0.0);
  const LossSum loss = Compute(batch);
  EXPECT_EQ(loss.count, 2);
  EXPECT_EQ(loss.trained, targets().tokens.ge(0).sum().item<int64_t>());
  EXPECT_EQ(loss.tokens, 20);
  EXPECT_EQ(loss.padding, 4);
  EXPECT_TRUE(std::isfinite(loss.sum.item<double>()));
  EXPECT_NEAR(targets().weights[0][7].item<double>(),
              inverse_p[0][7].item<double>() / 2, 1e-3);
  EXPECT_NEAR(targets().weights[1][7].item<double>(),
              inverse_p[1][7].item<double>() / 5, 1e-3);
  EXPECT_EQ(targets().tokens[2].ge(0).sum().item<int64_t>(), 0);
}

TEST_F(NoiseTest, NoTargetAtAllIsLegal) {
  Batch batch = Rows(0, 1, 4);
  batch["labels"] = at::full({1, 4}, -100, at::kLong);
  for (const Config::Loss loss :
       {Config::PRETRAIN, Config::SFT, Config::MASKED_MEAN}) {
    SetConfig(loss, 0.0);
    const LossSum made = Compute(batch);
    EXPECT_EQ(made.count, 0);
    EXPECT_EQ(made.sum.item<double>(), 0.0);
  }
}

TEST_F(NoiseTest, PromptsAreNeverHidden) {
  Batch batch = Rows(0, 200, 8);
  batch["labels"] = batch["input_ids"].clone();
  batch["labels"].slice(1, 0, 5).fill_(-100);
  const at::Tensor hidden = Hidden(batch);
  EXPECT_EQ(hidden.slice(1, 0, 5).sum().item<int64_t>(), 0);
  EXPECT_GT(hidden.slice(1, 5, 8).sum().item<int64_t>(), 200);
  EXPECT_FALSE(input().positions.defined());
}

// An end token is trained on in the answer but not in the padding, though it is
// the same token: the label decides.
TEST_F(NoiseTest, PaddingIsNoTargetAndIsNotSeen) {
  constexpr int64_t kEos = FakeModel::kEos;
  Batch batch = {{"input_ids", Row({1, 2, 3, kEos, kEos, kEos})},
                 {"labels", Row({-100, 2, 3, kEos, -100, -100})},
                 {"sample_position", at::tensor({5}, at::kLong)}};
  bool end_is_learned = false;
  for (int64_t sample = 0; sample < 20; ++sample) {
    batch["sample_position"] = at::tensor({sample}, at::kLong);
    EXPECT_EQ(Compute(batch).count, 3);
    EXPECT_EQ(targets().tokens[0].slice(0, 4, 6).ge(0).sum().item<int64_t>(),
              0);
    end_is_learned |= targets().tokens[0][3].item<int64_t>() == kEos;
    EXPECT_THAT(Values(input().positions), ElementsAre(0, 1, 2, 3, 0, 1));
  }
  EXPECT_TRUE(end_is_learned);
}

// A row is trained on identically in any batch, whatever it is padded to.
TEST_F(NoiseTest, ARowIsTheSameAloneAndInABatch) {
  const Batch alone = {{"input_ids", Row({1, 2, 3, 4})},
                       {"labels", Row({-100, 2, 3, 4})},
                       {"sample_position", at::tensor({9}, at::kLong)}};
  Batch padded = alone;
  padded["input_ids"] = Row({1, 2, 3, 4, 0, 0, 0});
  padded["labels"] = Row({-100, 2, 3, 4, -100, -100, -100});
  for (const Config::Loss loss :
       {Config::PRETRAIN, Config::SFT, Config::MASKED_MEAN}) {
    SetConfig(loss, 0.0);
    const LossSum a = Compute(alone);
    const LossSum b = Compute(padded);
    EXPECT_EQ(a.count, b.count);
    EXPECT_EQ(a.sum.item<double>(), b.sum.item<double>());
    EXPECT_TRUE(model_.inputs[model_.inputs.size() - 2].tokens.equal(
        input().tokens.slice(1, 0, 4)));
  }
}

TEST_F(NoiseTest, MasksAreTheSamplesOwn) {
  SetConfig(Config::PRETRAIN, 0.3);
  const Batch all = Rows(40, 12, 16);
  Compute(all);
  const TokenTargets whole = targets();
  const at::Tensor seen = input().tokens;
  // In any micro-batches, in any order: as on other ranks.
  for (const int64_t count : {1, 3, 4}) {
    for (int64_t begin = 12 - count; begin >= 0; begin -= count) {
      Batch part;
      for (const auto& [name, tensor] : all) {
        part[name] = tensor.narrow(0, begin, count);
      }
      Compute(part);
      EXPECT_TRUE(input().tokens.equal(seen.narrow(0, begin, count)));
      EXPECT_TRUE(targets().tokens.equal(whole.tokens.narrow(0, begin, count)));
      EXPECT_TRUE(
          targets().weights.equal(whole.weights.narrow(0, begin, count)));
    }
  }
  EXPECT_FALSE(seen[0].equal(seen[1]));
  // Different in the next epoch and in another run.
  EXPECT_FALSE(Hidden(Rows(52, 12, 16)).equal(whole.tokens.ge(0)));
  info_.seed = 4;
  EXPECT_FALSE(Hidden(all).equal(whole.tokens.ge(0)));
}

// Micro-batches of any size add up to the whole batch.
TEST_F(NoiseTest, MicroBatchesAddUp) {
  for (const Config::Loss kind :
       {Config::PRETRAIN, Config::SFT, Config::MASKED_MEAN}) {
    SetConfig(kind, 0.3);
    const Batch all = Rows(0, 12, 16);
    const LossSum whole = Compute(all);
    double sum = 0.0;
    int64_t counted = 0;
    for (int64_t begin = 0; begin < 12; begin += 3) {
      Batch part;
      for (const auto& [name, tensor] : all) {
        part[name] = tensor.narrow(0, begin, 3);
      }
      const LossSum loss = Compute(part);
      sum += loss.sum.item<double>();
      counted += loss.count;
    }
    EXPECT_EQ(counted, whole.count);
    EXPECT_NEAR(sum / whole.sum.item<double>(), 1.0, 1e-6);
  }
}

TEST_F(NoiseTest, RatesAreUniformAndMasksFollowThem) {
  constexpr int64_t kRows = 2000, kLength = 64;
  const Batch batch = Rows(0, kRows, kLength);
  const at::Tensor hidden = Hidden(batch).to(at::kDouble);
  const at::Tensor p = targets().weights.select(1, 0).to(at::kDouble).pow(-1);
  // Uniform in [0.001, 1]: mean and variance, to four standard deviations.
  EXPECT_NEAR(p.mean().item<double>(), 0.5005, 4 * 0.2884 / std::sqrt(kRows));
  EXPECT_NEAR(p.var().item<double>(), 0.0832, 0.008);
  EXPECT_GE(p.min().item<double>(), 0.001 - 1e-9);
  EXPECT_NEAR(hidden.mean().item<double>(), p.mean().item<double>(),
              4 * 0.5 / std::sqrt(kRows * kLength));
  // Each row's masks have its own rate, so that 1 / p weights them right.
  const at::Tensor z = (hidden.mean(1) - p) / (p * (1 - p) / kLength).sqrt();
  EXPECT_NEAR(z.pow(2).mean().item<double>(), 1.0, 0.15);
}

TEST_F(NoiseTest, EvaluationsCanBeCompared) {
  SetConfig(Config::PRETRAIN, 1.0);
  const Batch batch = Rows(0, 8, 32);
  const at::Tensor training = Hidden(batch);
  info_.training = false;
  const at::Tensor first = Hidden(batch);
  EXPECT_FALSE(first.equal(training));
  // On whole texts, without dropout, whatever the run's seed.
  EXPECT_FALSE(input().sample_positions.defined());
  EXPECT_FALSE(input().positions.defined());
  EXPECT_EQ(Compute(batch).count, 8 * 32);
  info_.seed = 99;
  EXPECT_TRUE(Hidden(batch).equal(first));
  // t is spread evenly: each eighth of (0, 1) has its sample.
  const at::Tensor p = targets().weights.select(1, 0).pow(-1);
  const at::Tensor sorted = std::get<0>(p.sort());
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(sorted[i].item<double>(), (i + 0.5) / 8, 0.11);
  }
}

TEST_F(NoiseTest, SamplesAreCutToRandomLengths) {
  constexpr int64_t kRows = 2000, kLength = 16;
  SetConfig(Config::PRETRAIN, 1.0);
  const Batch batch = Rows(0, kRows, kLength);
  const LossSum loss = Compute(batch);
  ASSERT_TRUE(input().positions.defined());
  std::vector<int64_t> of_length(kLength + 1, 0);
  int64_t kept = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto positions = Values(input().positions[row]);
    int64_t length = 1;
    while (length < kLength && positions[length] == length) ++length;
    ++of_length[length];
    kept += length;
    // The rest is a separate text without targets.
    for (int64_t i = length; i < kLength; ++i) {
      ASSERT_EQ(positions[i], i - length);
      ASSERT_LT(targets().tokens[row][i].item<int64_t>(), 0);
      ASSERT_NE(input().tokens[row][i].item<int64_t>(), kMask);
    }
  }
  EXPECT_EQ(loss.count, kept);
  for (int64_t length = 1; length <= kLength; ++length) {
    EXPECT_NEAR(of_length[length], kRows / kLength, 4 * std::sqrt(125.0))
        << length;
  }
}

TEST_F(NoiseTest, OnePerCentOfPretrainingIsCut) {
  constexpr int64_t kRows = 20000;
  Config config;
  SetConfig(config);
  Compute(Rows(0, kRows, 8));
  const at::Tensor cut = (input().positions.select(1, 7).ne(7)).to(at::kDouble);
  // One in eight is cut to all of its length.
  EXPECT_NEAR(cut.sum().item<double>(), kRows * 0.01 * 7 / 8, 50);
  config.set_loss(Config::SFT);
  SetConfig(config);
  Compute(Rows(0, kRows, 8));
  EXPECT_FALSE(input().positions.defined());
}

TEST_F(NoiseTest, EachDocumentOfARowHasItsOwnRate) {
  Batch batch = {{"input_ids", Row({1, 2, 3, 4, 5, 6, 7, 8})},
                 {"labels", Row({-100, 2, 3, -100, 5, 6, 7, -100})},
                 {"positions", Row({0, 1, 2, 0, 1, 2, 3, 0})},
                 {"sample_position", at::tensor({1}, at::kLong)}};
  EXPECT_EQ(Compute(batch).count, 5);
  EXPECT_TRUE(input().positions.equal(batch["positions"]));
  const at::Tensor weights = targets().weights[0];
  EXPECT_EQ(weights[1].item<float>(), weights[2].item<float>());
  EXPECT_NE(weights[1].item<float>(), weights[4].item<float>());
  SetConfig(Config::SFT, 0.0);
  EXPECT_EQ(Compute(batch).count, 2);
  EXPECT_NEAR(targets().weights[0][4].item<double>(),
              weights[4].item<double>() / 3, 1e-4);
  // A cut leaves the documents before it as they are.
  SetConfig(Config::PRETRAIN, 1.0);
  for (int64_t sample = 0; sample < 50; ++sample) {
    batch["sample_position"] = at::tensor({sample}, at::kLong);
    Compute(batch);
    const auto positions = Values(input().positions);
    const std::vector<int64_t> whole = Values(batch["positions"]);
    const size_t end =
        std::mismatch(whole.begin(), whole.end(), positions.begin()).first -
        whole.begin();
    for (size_t i = end; i < positions.size(); ++i) {
      EXPECT_LT(targets().tokens[0][i].item<int64_t>(), 0);
    }
  }
}

}  // namespace
}  // namespace capstan::masked_diffusion
