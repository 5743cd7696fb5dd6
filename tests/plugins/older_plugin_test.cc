// SPDX-License-Identifier: Apache-2.0
//
// Plugins that were built against the SDK of plugin API 1.0 (minor0/) work in
// this trainer, whose interfaces have grown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/precision.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::string PluginFolder() {
  const std::string folder = NewTestFolder("plugins");
  for (const char* name : {"old_bf16", "old_momentum", "old_next_token"}) {
    const std::string library = absl::StrCat("libacme_", name, ".so");
    WriteText(absl::StrCat(folder, "/", library),
              ReadText(Runfile("tests/plugins/minor0/" + library)));
  }
  return folder;
}

constexpr char kMomentum[] =
    "[plugin/acme.old_momentum.Config] { learning_rate: 0.3 }";

TEST(OlderPluginTest, WhatTheyLackIsTheDefault) {
  PluginHost host({PluginFolder()});
  const auto loaded = host.Load("acme.old_next_token.Config");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->descriptor->api_minor, 0);
  const auto objective = host.Create<Objective>("acme.old_next_token.Config",
                                                PluginCategory::kObjective, "");
  ASSERT_TRUE(objective.ok()) << objective.status();
  EXPECT_EQ((*objective)->unit(), "tokens");
  EXPECT_TRUE((*objective)->DerivedFromLoss(1.0).empty());
  const auto precision = host.Create<Precision>("acme.old_bf16.Config",
                                                PluginCategory::kPrecision, "");
  ASSERT_TRUE(precision.ok()) << precision.status();
  EXPECT_FALSE((*precision)->depends_on_device());
  EXPECT_EQ((*precision)->PolicyOn({}).compute, c10::ScalarType::BFloat16);
  EXPECT_EQ((*precision)->instead(), "");
}

TEST(OlderPluginTest, TheirErrorsNameTheField) {
  const RunText run =
      RunText().Set("optimizer", "[plugin/acme.old_momentum.Config] {}");
  ExpectOneError(RunTrainer({"check", "--config=" + run.File(),
                             "--plugin_path=" + PluginFolder()}),
                 {"run.pbtxt:", "optimizer.learning_rate",
                  "must be greater than 0, is 0"});
}

class OlderPluginRunTest : public ::testing::TestWithParam<const char*> {};

// The old objective's losses are those of today's, and so is its metadata.
TEST_P(OlderPluginRunTest, TrainsAndEvaluates) {
  const std::string path = "--plugin_path=" + PluginFolder();
  std::vector<double> losses[2];
  for (const bool old : {false, true}) {
    RunText run = RunText()
                      .Set("optimizer", kMomentum)
                      .Strategy(GetParam(), 2)
                      .Batch(2, 8)
                      .Train("max_steps: 6 eval_every: 3 save_every: 3")
                      .Set("eval_data",
                           TextData(Runfile("tests/testdata/corpus.txt"), 32))
                      .Output(NewTestFolder("run") + "/out");
    if (old) run.Set("objective", "[plugin/acme.old_next_token.Config] {}");
    const TrainerResult result = RunTrainer({"--config=" + run.File(), path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    losses[old] = ReadMetrics(run.output()).losses();
    ASSERT_EQ(losses[old].size(), 6);
    EXPECT_EQ(CheckpointSteps(run.output()).back(), 6);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_LT(losses[0].back(), losses[0].front());
}

TEST_P(OlderPluginRunTest, TrainsInItsPrecision) {
  RunText run = RunText()
                    .Set("precision", "[plugin/acme.old_bf16.Config] {}")
                    .Set("optimizer", kMomentum)
                    .Strategy(GetParam(), 2)
                    .Batch(2, 8)
                    .Output(NewTestFolder("run") + "/out");
  const TrainerResult result =
      RunTrainer({"--config=" + run.File(), "--plugin_path=" + PluginFolder()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

INSTANTIATE_TEST_SUITE_P(All, OlderPluginRunTest,
                         ::testing::Values("ddp", "zero2", "fsdp"));

TEST(OlderPluginTest, AreListed) {
  const TrainerResult list =
      RunTrainer({"plugins", "--plugin_path=" + PluginFolder()});
  EXPECT_EQ(list.exit_code, 0) << list.out;
  EXPECT_THAT(list.out, HasSubstr("momentum of plugin API 1.0"));
}

}  // namespace
}  // namespace capstan
