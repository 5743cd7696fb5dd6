// SPDX-License-Identifier: Apache-2.0
//
// Plugins that end the process which loads them or makes their instance: the
// trainer names them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string PluginFolder() {
  const std::string folder = NewTestFolder("plugins");
  for (const char* name :
       {"libacme_broken.so", "libacme_signsgd.so", "libacme_keyless.so"}) {
    WriteText(absl::StrCat(folder, "/", name),
              ReadText(Runfile(absl::StrCat("tests/plugins/acme/", name))));
  }
  return folder;
}

TrainerResult Check(const RunText& run, const std::string& folder,
                    const std::string& when_loaded = "") {
  TrainerOptions options;
  if (!when_loaded.empty()) options.environment["ACME_BROKEN"] = when_loaded;
  return RunTrainer(
      {"check", "--config=" + run.File(), "--plugin_path=" + folder}, options);
}

RunText BrokenRun(const std::string& create = "") {
  return RunText().Set(
      "precision",
      absl::StrCat("[plugin/acme.broken.Config] { create: \"", create, "\" }"));
}

TEST(BrokenPluginTest, WorksUnlessToldOtherwise) {
  const std::string folder = PluginFolder();
  EXPECT_EQ(Check(BrokenRun(), folder).exit_code, 0);
}

TEST(BrokenPluginTest, OneThatCrashesWhenLoadedIsRefused) {
  const std::string folder = PluginFolder();
  ExpectOneError(Check(BrokenRun(), folder, "crash"),
                 {"run.pbtxt:", folder + "/libacme_broken.so", "is refused",
                  "static initialisers", "signal 11"});
  ExpectOneError(Check(BrokenRun(), folder, "abort"),
                 {"run.pbtxt:", folder + "/libacme_broken.so", "signal 6",
                  "no license found"});
  ExpectOneError(Check(BrokenRun(), folder, "exit"),
                 {"run.pbtxt:", folder + "/libacme_broken.so", "is refused",
                  "exit code 3"});
}

TEST(BrokenPluginTest, OneThatLoadsSlowlyIsWaitedForByName) {
  const std::string folder = PluginFolder();
  const TrainerResult result = Check(BrokenRun(), folder, "slow");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("waiting for " + folder + "/libacme_broken.so"));
}

// A process can hold each proto file once; protobuf aborts.
TEST(BrokenPluginTest, TwoLibrariesWithOneProtoFileAreBothNamed) {
  const std::string folder = PluginFolder();
  const RunText run = BrokenRun().Set(
      "optimizer", "[plugin/acme.signsgd.Config] { learning_rate: 1e-3 }");
  ExpectOneError(
      Check(run, folder, "clash"),
      {"run.pbtxt:", "is refused", folder + "/libacme_broken.so",
       folder + "/libacme_signsgd.so", "tests/plugins/acme/signsgd.proto"});
}

TEST(BrokenPluginTest, TheListGoesOn) {
  TrainerOptions options;
  options.environment["ACME_BROKEN"] = "crash";
  const std::string folder = PluginFolder();
  WriteText(folder + "/libacme_cut.so", "not a library");
  const TrainerResult list =
      RunTrainer({"plugins", "--plugin_path=" + folder}, options);
  EXPECT_EQ(list.exit_code, 1);
  EXPECT_THAT(list.out,
              AllOf(HasSubstr("acme.signsgd.Config"), HasSubstr("signal 11"),
                    HasSubstr("capstan.zero2.Config"),
                    HasSubstr(folder + "/libacme_cut.so it is not a 64-bit")));
}

TEST(BrokenPluginTest, WhatItsCreateDoesIsNamed) {
  const std::string folder = PluginFolder();
  const std::string library = folder + "/libacme_broken.so";
  ExpectOneError(Check(BrokenRun("crash"), folder),
                 {"run.pbtxt:", "precision", "acme.broken", library, "Create",
                  "signal 11"});
  ExpectOneError(Check(BrokenRun("exit"), folder),
                 {"run.pbtxt:", "acme.broken", library, "Create", "exit code 0",
                  "goodbye"});
  ExpectOneError(
      Check(BrokenRun("null"), folder),
      {"run.pbtxt:", "acme.broken", library, "Create", "null pointer"});
}

// A reader may index its data in Create: the trial ends, the run goes on.
TEST(BrokenPluginTest, ASlowCreateIsNoError) {
  const TrainerResult result = Check(BrokenRun("slow"), PluginFolder());
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(BrokenPluginTest, AFolderThatIsNotThereIsAnError) {
  const std::string folder = PluginFolder() + "/typo";
  for (const TrainerResult& result :
       {Check(RunText(), folder),
        RunTrainer({"plugins", "--plugin_path=" + folder})}) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, AllOf(HasSubstr("--plugin_path"),
                                  HasSubstr(folder + " is not a folder")));
  }
}

// Readers and objectives agree by the names of a batch's tensors.
TEST(BrokenPluginTest, AReaderThatGivesNoTokensIsNamedWithTheObjective) {
  const RunText run = RunText()
                          .Set("train_data", "[plugin/acme.keyless.Config] {}")
                          .Ddp(2)
                          .Output(NewTestFolder("run") + "/out");
  ExpectOneError(
      RunTrainer({"--config=" + run.File(), "--plugin_path=" + PluginFolder()}),
      {"run.pbtxt:", "train_data", "acme.keyless", "capstan.causal_lm",
       "no \"input_ids\", only: x"});
  const RunText eval = RunText()
                           .Set("eval_data", "[plugin/acme.keyless.Config] {}")
                           .Train("eval_every: 2")
                           .Output(NewTestFolder("run") + "/out");
  ExpectOneError(RunTrainer({"--config=" + eval.File(),
                             "--plugin_path=" + PluginFolder()}),
                 {"evaluation", "no \"input_ids\", only: x"});
}

}  // namespace
}  // namespace capstan
