// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/optimizer/muon/muon.pb.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan::muon {
namespace {

Config Good() {
  Config config;
  config.set_learning_rate(0.02);
  config.mutable_adamw()->set_learning_rate(1e-3);
  return config;
}

// The field that Create blames, "" if none.
std::string Blamed(const Config& config) {
  return FieldOf(MakePlugin<Optimizer>(config).status()).value_or("");
}

template <typename Change>
std::string BlamedAfter(Change change) {
  Config config = Good();
  change(&config);
  return Blamed(config);
}

TEST(MuonPluginTest, BadSettingsNameTheirField) {
  EXPECT_EQ(Blamed(Good()), "");
  EXPECT_EQ(Blamed(Config()), "learning_rate");
  EXPECT_EQ(BlamedAfter([](Config* c) { c->set_momentum(1.0); }), "momentum");
  EXPECT_EQ(BlamedAfter([](Config* c) { c->set_weight_decay(std::nan("")); }),
            "weight_decay");
  EXPECT_EQ(BlamedAfter([](Config* c) { c->set_epsilon(0.0); }), "epsilon");
  EXPECT_EQ(BlamedAfter([](Config* c) { c->set_ns_steps(0); }), "ns_steps");
  EXPECT_EQ(BlamedAfter([](Config* c) { c->set_ns_steps(7); }), "");
  EXPECT_EQ(BlamedAfter([](Config* c) {
              c->set_polynomial(Config::POLAR_EXPRESS);
              c->set_ns_steps(7);
            }),
            "ns_steps");
  EXPECT_EQ(BlamedAfter([](Config* c) { c->set_beta2(0.9); }), "beta2");
  EXPECT_EQ(BlamedAfter([](Config* c) {
              c->set_normuon(true);
              c->set_beta2(1.0);
            }),
            "beta2");
  EXPECT_EQ(BlamedAfter([](Config* c) {
              c->set_adjust_lr(static_cast<Config::AdjustLr>(9));
            }),
            "adjust_lr");
  EXPECT_EQ(BlamedAfter([](Config* c) {
              c->set_polynomial(static_cast<Config::Polynomial>(9));
            }),
            "polynomial");
  EXPECT_EQ(BlamedAfter([](Config* c) {
              c->set_arithmetic(static_cast<Config::Arithmetic>(9));
            }),
            "arithmetic");
  EXPECT_EQ(BlamedAfter([](Config* c) { c->mutable_adamw()->set_beta1(-1); }),
            "adamw.beta1");
  EXPECT_EQ(
      BlamedAfter([](Config* c) { c->mutable_adamw()->set_weight_decay(-1); }),
      "adamw.weight_decay");
}

TEST(MuonPluginTest, OneRateServesBothOnlyIfItIsMatched) {
  const auto without = [](Config* c) { c->clear_adamw(); };
  EXPECT_EQ(BlamedAfter(without), "adamw.learning_rate");
  EXPECT_EQ(BlamedAfter([&](Config* c) {
              without(c);
              c->set_adjust_lr(Config::MATCH_RMS_ADAMW);
            }),
            "");
}

// An embedding, a matrix, a norm, a stack of experts, a head.
class SmallModel final : public Model {
 public:
  SmallModel() : specs_(5), units_({"embed", "layer", "head"}) {
    const std::vector<std::vector<int64_t>> shapes = {
        {50, 8}, {8, 20}, {8}, {3, 8, 6}, {50, 8}};
    for (int i = 0; i < 5; ++i) {
      specs_[i].name = std::string(1, static_cast<char>('a' + i));
      specs_[i].shape = shapes[i];
      specs_[i].unit = i == 0 ? 0 : (i == 4 ? 2 : 1);
      specs_[i].read_in_backward = i != 0;
    }
  }
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t,
                            float*) const override {
    return absl::UnimplementedError("no values");
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::UnimplementedError("no config");
  }

 private:
  std::vector<ParameterSpec> specs_;
  const std::vector<std::string> units_;
};

TEST(MuonPluginTest, AMatrixHasOneMomentumTheRestAdamWsMoments) {
  Config config = Good();
  config.set_normuon(true);
  const auto made = MakePlugin<Optimizer>(config);
  ASSERT_TRUE(made.ok()) << made.status();
  const Optimizer& optimizer = **made;
  const SmallModel model;
  const bool matrix[] = {false, true, false, true, false};
  const int64_t rows[] = {0, 8, 0, 24, 0};
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(optimizer.NeedsWhole(model, i), matrix[i]);
    const ParameterSpec& spec = model.parameters()[i];
    const int64_t all = Optimizer::kByRange;
    EXPECT_EQ(optimizer.StateNumel(spec, 0), matrix[i] ? all : 0);
    EXPECT_EQ(optimizer.StateNumel(spec, 1), matrix[i] ? 0 : all);
    EXPECT_EQ(optimizer.StateNumel(spec, 2), matrix[i] ? 0 : all);
    EXPECT_EQ(optimizer.StateNumel(spec, 3), rows[i]);
  }
  EXPECT_EQ(optimizer.state_names().size(), 4u);
  EXPECT_EQ((*MakePlugin<Optimizer>(Good()))->state_names().size(), 3u);
}

// Of [8, 20], on the CPU beside its Gram matrices, on a GPU while the momentum
// is updated; of the stack, where its Gram matrices count, too.
TEST(MuonPluginTest, SaysWhatAnUpdateHolds) {
  const SmallModel model;
  const auto made = MakePlugin<Optimizer>(Good());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->UpdateBytes({&model, 1000, true}), 12 * 160);
  EXPECT_EQ((*made)->UpdateBytes({&model, 1000, false}), 8 * 160 + 16 * 64);
  Config config = Good();
  config.set_arithmetic(Config::FLOAT32);
  EXPECT_EQ((*MakePlugin<Optimizer>(config))->UpdateBytes({&model, 1, true}),
            12 * 144 + 8 * 3 * 36);
}

}  // namespace
}  // namespace capstan::muon
