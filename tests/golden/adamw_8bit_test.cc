// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw_8bit.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/optimizer/adamw/adamw.pb.h"
#include "tests/golden/golden_optimizer.h"

namespace capstan {
namespace {

TEST(AdamW8BitGoldenTest, MapsAreBitsandbytes) {
  for (const bool is_signed : {true, false}) {
    const at::Tensor theirs = ReadGolden(is_signed ? "adamw_8bit.signed_map"
                                                   : "adamw_8bit.unsigned_map");
    for (int code = 0; code < 256; ++code) {
      const float value = theirs[code].item<float>();
      EXPECT_NEAR(kernels::DynamicMap(is_signed)[code], value,
                  1e-6 * std::abs(value))
          << code;
    }
  }
}

// Where a value is midway between two codes, roundings of float32 choose: a few
// codes may differ, and with them an element by a hundredth of its steps.
TEST(AdamW8BitGoldenTest, FollowsThePaper) {
  adamw::Config config;
  config.set_learning_rate(1e-2);
  config.set_weight_decay(0.1);
  config.set_state(adamw::Config::EIGHT_BIT);
  GoldenShard ours(MakeGolden(config), {"adamw_8bit.matrix"});
  for (int step = 1; step <= kGoldenSteps; ++step) {
    ours.Step(step);
    const at::Tensor apart =
        (ours.Parameter(0) -
         ReadGolden(absl::StrCat("adamw_8bit.matrix.step", step)))
            .abs();
    EXPECT_LE((apart > 1e-6).sum().item<int64_t>(), apart.numel() / 500);
    EXPECT_LE(apart.max().item<float>(), 1e-3);
  }
  const std::vector<std::pair<int, std::string>> kinds = {
      {2, "exp_avg_8bit"}, {4, "exp_avg_sq_8bit"}};
  for (const auto& [index, name] : kinds) {
    const at::Tensor theirs = ReadGoldenBytes("adamw_8bit." + name);
    const at::Tensor mine = ours.state[index];
    ASSERT_EQ(mine.numel(), theirs.numel());
    EXPECT_LE((mine != theirs).sum().item<int64_t>(), theirs.numel() / 500);
    EXPECT_TRUE(ours.state[index + 1].allclose(
        ReadGolden(absl::StrCat("adamw_8bit.exp_avg",
                                index == 2 ? "_absmax" : "_sq_absmax")),
        1e-5, 1e-9));
  }
}

}  // namespace
}  // namespace capstan
