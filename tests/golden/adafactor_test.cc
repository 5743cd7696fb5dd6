// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/optimizer/adafactor/adafactor.pb.h"
#include "tests/golden/golden_optimizer.h"

namespace capstan {
namespace {

void CheckAdafactor(const std::string& which, const adafactor::Config& config) {
  SCOPED_TRACE(which);
  const std::vector<std::string> names = {
      "adafactor.matrix", "adafactor.vector", "adafactor.stack"};
  GoldenShard ours(MakeGolden(config), names);
  for (int step = 1; step <= kGoldenSteps; ++step) {
    ours.Step(step);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor theirs =
          ReadGolden(absl::StrCat(names[i], ".", which, step));
      EXPECT_LE((ours.Parameter(i) - theirs).abs().max().item<float>(), 1e-6)
          << names[i] << ", step " << step;
    }
  }
}

TEST(AdafactorGoldenTest, IsTransformers) {
  adafactor::Config config;
  config.set_learning_rate(1e-2);
  CheckAdafactor("plain", config);
  config.set_scale_parameter(true);
  config.set_weight_decay(0.1);
  config.set_clip_threshold(0.5);
  CheckAdafactor("scaled", config);
  config = adafactor::Config();
  config.set_relative_step(true);
  config.set_scale_parameter(true);
  CheckAdafactor("default", config);
  config.set_warmup_init(true);
  config.set_beta1(0.9);
  CheckAdafactor("relative", config);
}

}  // namespace
}  // namespace capstan
