// SPDX-License-Identifier: Apache-2.0
//
// Plugins of SDK 1.0 in this trainer: built against headers in which every
// function that has taken a Room since is that Room again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "host/plugins/plugin_host.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"
#include "tests/testing/outside_build.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// A header of the SDK as its vtables were in 1.0.
std::string HeaderOf10(const std::string& header) {
  std::string former = std::regex_replace(
      header, std::regex("\n( *virtual) [^;{}]*; *// (Room[0-9]+)(?=\n)"),
      "\n$1 void $2();");
  EXPECT_THAT(former, Not(ContainsRegex("// Room[0-9]")));
  former = std::regex_replace(
      former, std::regex("(#define CAPSTAN_SDK_MINOR) [0-9]+"), "$1 0");
  return std::regex_replace(
      former, std::regex("(#define CAPSTAN_SDK_HASH) \"[0-9a-f]+\""),
      "$1 \"former\"");
}

// An SDK folder with such headers. What a plugin links is today's, as it is
// when the plugin is loaded.
std::string MakeSdkOf10() {
  const fs::path sdk = SdkFolder();
  const fs::path former = NewTestFolder("sdk_of_1_0");
  for (const auto& entry : fs::directory_iterator(sdk)) {
    const fs::path name = entry.path().filename();
    if (name != "include") fs::create_symlink(entry.path(), former / name);
  }
  int changed = 0;
  for (const auto& entry : fs::recursive_directory_iterator(sdk / "include")) {
    if (entry.is_directory()) continue;
    const fs::path to = former / entry.path().lexically_relative(sdk);
    fs::create_directories(to.parent_path());
    const std::string text = ReadText(entry.path().string());
    const std::string now = WriteText(
        to.string(), to.extension() == ".h" ? HeaderOf10(text) : text);
    if (ReadText(now) != text) ++changed;
  }
  // objective.h, model.h, token_model.h, fingerprint.h and sdk_hash.h at least.
  EXPECT_GE(changed, 5);
  return former.string();
}

// Where what `trainer new-plugin` writes was built: acme.aim, an objective, and
// acme.cub, a model; in former/ with SDK 1.0, in today/ with this one. Made
// once.
const std::string& Plugins() {
  static const std::string* const folder = [] {
    const std::string made = NewTestFolder("plugins");
    for (const auto& [category, name] :
         {std::pair{"objective", "acme.aim"}, {"model", "acme.cub"}}) {
      const TrainerResult written =
          RunTrainer({"new-plugin", absl::StrCat("--category=", category),
                      absl::StrCat("--name=", name), made});
      EXPECT_EQ(written.exit_code, 0) << written.err;
    }
    for (const auto& [build, sdk] :
         {std::pair{"former", MakeSdkOf10()}, {"today", SdkFolder()}}) {
      const ShellResult built =
          Make(made, absl::StrCat("CAPSTAN_BUILD=", build), sdk);
      EXPECT_EQ(built.exit_code, 0) << built.output;
    }
    return new std::string(made);
  }();
  return *folder;
}

std::vector<std::string> PluginPaths(const std::string& build) {
  return {absl::StrCat("--plugin_path=", Plugins(), "/", build, "/acme/aim"),
          absl::StrCat("--plugin_path=", Plugins(), "/", build, "/acme/cub")};
}

// The trainer with the plugins of a build and more arguments.
TrainerResult RunWith(const std::string& build,
                      std::vector<std::string> arguments) {
  for (const std::string& path : PluginPaths(build)) arguments.push_back(path);
  return RunTrainer(arguments);
}

class GrowthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CanBuildOutside()) GTEST_SKIP() << "there is no make, g++ or protoc";
    Plugins();
    ASSERT_FALSE(HasFailure());
  }
};

std::vector<double> Losses(const std::string& build) {
  RunText run;
  run.Set("model",
          "[plugin/acme.cub.Config] { vocab_size: 256 hidden_size: 64 "
          "max_position_embeddings: 128 }");
  run.Set("objective", "[plugin/acme.aim.Config] { context: 16 }");
  run.Ddp(2).Batch(4, 8).Output(NewTestFolder("run") + "/out");
  run.Train("max_steps: 12 save_every: 6");
  const TrainerResult result = RunWith(build, {"--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? ReadMetrics(run.output()).losses()
                               : std::vector<double>();
}

TEST_F(GrowthTest, PluginsOfTheFirstSdkTrainLikeTodays) {
  const std::vector<double> former = Losses("former");
  ASSERT_EQ(former.size(), 12);
  EXPECT_LT(former.back(), former.front());
  EXPECT_EQ(former, Losses("today"));
}

TEST_F(GrowthTest, TheyAreListedWithTheirSdk) {
  const TrainerResult former = RunWith("former", {"plugins"});
  EXPECT_EQ(former.exit_code, 0) << former.err;
  EXPECT_THAT(
      former.out,
      AllOf(ContainsRegex("\nobjective +acme.aim.Config .*\\(SDK 1.0\\)\n"),
            ContainsRegex("\nmodel +acme.cub.Config .*\\(SDK 1.0\\)\n"),
            HasSubstr(absl::StrCat("\n  sdk=1.", CAPSTAN_SDK_MINOR, "\n"))));
  EXPECT_THAT(RunWith("today", {"plugins"}).out, Not(HasSubstr("(SDK 1")));
}

// In this process, since the trainer doesn't call all of them in a run.
TEST_F(GrowthTest, WhatHasComeSinceMeansItsDefault) {
  PluginHost host(
      {Plugins() + "/former/acme/aim", Plugins() + "/former/acme/cub"});
  const auto objective =
      host.Create<Objective>("acme.aim.Config", PluginCategory::kObjective, "");
  ASSERT_TRUE(objective.ok()) << objective.status();
  // vocab_size, hidden_size and max_position_embeddings, in protobuf's bytes.
  const auto model = host.Create<Model>(
      "acme.cub.Config", PluginCategory::kModel, "\x08\x0b\x10\x05\x18\x08");
  ASSERT_TRUE(model.ok()) << model.status();

  Objective& aim = **objective;
  EXPECT_EQ(aim.SaveState(), "");
  EXPECT_EQ(aim.RestoreState("state").message(), "this objective has no state");
  EXPECT_FALSE(aim.has_rollouts());
  std::vector<Batch> batches(2);
  PlainRunner runner;
  EXPECT_EQ(aim.Rollout(**model, &batches, RolloutInfo(), runner),
            absl::OkStatus());
  EXPECT_EQ(batches.size(), 2);
  EXPECT_EQ(aim.own_curve(), absl::nullopt);
  EXPECT_FALSE(aim.allows_divided_rows());
  EXPECT_FALSE(aim.has_whole_sums());
  // What it has itself is still in its place.
  EXPECT_EQ(aim.unit(), "tokens");

  Model& cub = **model;
  EXPECT_EQ(cub.SaveState(), "");
  EXPECT_EQ(cub.RestoreState("state").message(), "this model has no state");
  EXPECT_THAT(cub.SetFp8({}).message(), HasSubstr("can't multiply in 8 bits"));
  EXPECT_EQ(cub.units().size(), 2);
  ASSERT_NE(cub.token_model(), nullptr);
  EXPECT_EQ(cub.token_model()->SetSequenceGroup(nullptr, false).message(),
            "this model can't divide rows among ranks");
  EXPECT_EQ(cub.token_model()->vocab_size(), 11);
}

// How the trainer takes the former objective with another version in its
// fingerprint.
void ExpectRefused(const std::string& version, const std::string& why) {
  const std::string folder = NewTestFolder("changed");
  const std::string library = "libacme_aim.so";
  std::string bytes = ReadText(Plugins() + "/former/acme/aim/" + library);
  ASSERT_GT(absl::StrReplaceAll({{"\nsdk=1.0\n", version}}, &bytes), 0);
  const std::string path = WriteText(folder + "/" + library, bytes);
  const std::string flag = "--plugin_path=" + folder;
  RunText run;
  run.Set("objective", "[plugin/acme.aim.Config] {}");
  ExpectOneError(
      RunTrainer({"check", "--config=" + run.File(), flag}),
      {path + " is refused: it was built for another trainer (" + why +
       "): build it again with this trainer's SDK and compiler"});
  const TrainerResult list = RunTrainer({"plugins", flag});
  EXPECT_EQ(list.exit_code, 1);
  EXPECT_THAT(list.out, ContainsRegex("\nrefused +acme.aim "));
}

TEST_F(GrowthTest, ANewerSdkIsRefusedAndSoAreOtherHeadersOfThisOne) {
  // A digit each.
  static_assert(CAPSTAN_SDK_MINOR < 9);
  const std::string ours = absl::StrCat("1.", CAPSTAN_SDK_MINOR);
  const std::string next = absl::StrCat("1.", CAPSTAN_SDK_MINOR + 1);
  ExpectRefused("\nsdk=" + next + "\n", "SDK: trainer " + ours + ", plugin " +
                                            next + ", which is newer");
  ExpectRefused("\nsdk=" + ours + "\n", "headers of SDK " + ours +
                                            ": trainer " + CAPSTAN_SDK_HASH +
                                            ", plugin former");
}

}  // namespace
}  // namespace capstan
