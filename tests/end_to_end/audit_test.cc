// SPDX-License-Identifier: Apache-2.0
//
// train.receipts and trainer audit: one chain for one training, however it is
// divided and interrupted; what was changed is named by its step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr char kReceipts[] = "/receipts.jsonl";

RunText SmallRun(const std::string& corpus) {
  return RunText()
      .Set("train_data", TextData(corpus, 32, "shuffle: true"))
      .Set("schedule", "kind: COSINE warmup_steps: 2")
      .Batch(2, 8)
      .Train(
          "max_steps: 6 eval_every: 0 save_every: 2 keep_checkpoints: 9 "
          "deterministic: true receipts: true");
}

Json Audit(const std::string& folder, std::vector<std::string> more = {},
           int exit_code = 0) {
  more.insert(more.begin(), {"audit", folder});
  more.push_back("--json");
  const TrainerResult result = RunTrainer(more);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  const Json json = Json::parse(result.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << result.out << result.err;
  return json;
}

std::string ChainOf(const std::string& folder) {
  return Audit(folder).value("chain", "");
}

class AuditTest : public ::testing::Test {
 protected:
  const std::string corpus_ = CorpusPiece(8 << 10);
};

TEST_F(AuditTest, OneChainHoweverTheRunIsDivided) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  const std::string chain = ChainOf(folder);
  EXPECT_EQ(chain.size(), 64u);
  EXPECT_THAT(ReadText(folder + "/final/README.md"), HasSubstr(chain));
  EXPECT_EQ(ChainOf(MustTrain(SmallRun(corpus_).Ddp(2))), chain);
  EXPECT_EQ(ChainOf(MustTrain(SmallRun(corpus_).Zero2(2))), chain);
  EXPECT_EQ(ChainOf(MustTrain(SmallRun(corpus_).Fsdp(4))), chain);
  EXPECT_NE(ChainOf(MustTrain(SmallRun(corpus_).Train("seed: 9"))), chain);
}

TEST_F(AuditTest, OneChainHoweverOftenItIsKilled) {
  const std::string chain = ChainOf(MustTrain(SmallRun(corpus_)));
  RunText run = SmallRun(corpus_).Ddp(2).Train("resume: AUTO");
  run.Output(NewTestFolder("killed"));
  // Ends after three of six steps, without a word of it in the chain.
  RunText part = run;
  MustTrain(
      part.Train("max_steps: 3")
          .Set("schedule", "kind: COSINE warmup_steps: 2 total_steps: 6"));
  // As if step 3's checkpoint were lost, and its line half written.
  for (const char* lost : {"/checkpoints/step-00000003", "/final"}) {
    fs::remove_all(run.output() + lost);
  }
  const std::string path = run.output() + kReceipts;
  std::ofstream(path, std::ios::app) << "{\"step\": 4, \"samp";
  MustTrain(
      SmallRun(corpus_).Fsdp(2).Train("resume: AUTO").Output(run.output()));
  const Json audit = Audit(run.output());
  EXPECT_EQ(audit["chain"], chain);
  EXPECT_EQ(audit["begun"], 2);
  EXPECT_EQ(audit["half_lines"], Json({5}));
  EXPECT_THAT(RunTrainer({"audit", run.output()}).out,
              HasSubstr("line 5: passed over"));
  EXPECT_EQ(audit["last_step"], 6);
}

TEST_F(AuditTest, StepsRunAgainAreTheSame) {
  const std::string folder = MustTrain(SmallRun(corpus_).Ddp(2));
  const std::string before = ReadText(folder + kReceipts);
  // From the checkpoint after step 4, and from the beginning.
  Json audit = Audit(folder, {"--step=5,1"});
  EXPECT_EQ(audit["again"], Json({1, 5}));
  EXPECT_EQ(audit["seed"], nullptr);
  EXPECT_EQ(audit["difference"], nullptr);
  // Another strategy, and other ranks.
  audit = Audit(folder, {"--step=6", "--set", "strategy=capstan.fsdp", "--set",
                         "launch.processes=4"});
  EXPECT_EQ(audit["difference"], nullptr);
  audit = Audit(folder, {"--sample=2", "--seed=3"});
  EXPECT_EQ(audit["again"].size(), 2u);
  EXPECT_EQ(audit["seed"], 3);
  // All of them: nothing is drawn.
  const TrainerResult all = RunTrainer({"audit", folder, "--sample=6"});
  EXPECT_THAT(all.out, AllOf(HasSubstr("1, 2, 3, 4, 5, 6: the same"),
                             Not(HasSubstr("drawn by"))));
  EXPECT_EQ(ReadText(folder + kReceipts), before);
  EXPECT_TRUE(fs::exists(folder + "/checkpoints/step-00000004"));
}

// Its weights are replaced, which its chain says; the same happens again.
TEST_F(AuditTest, ARunThatGoesBackCanBeRunAgain) {
  // The rows of step 15 are of a letter that no other has.
  constexpr int kStepBytes = 8 * 32;
  const std::string corpus = CorpusPiece(20 * kStepBytes + 1);
  std::string text = ReadText(corpus);
  text.replace(14 * kStepBytes, kStepBytes, kStepBytes, '\x01');
  std::ofstream(corpus) << text;
  const std::string folder =
      MustTrain(SmallRun(corpus)
                    .Set("train_data", TextData(corpus, 32))
                    .Train("max_steps: 18 save_every: 4 loss_spikes: "
                           "{action:GO_BACK,window:8,z_score:4}"));
  EXPECT_THAT(ReadText(folder + "/events.jsonl"),
              HasSubstr("the run goes back"));
  EXPECT_THAT(ReadText(folder + kReceipts), HasSubstr("\"why\":"));
  // From before it.
  for (const char* name : {"step-00000016", "step-00000018"}) {
    fs::remove_all(folder + "/checkpoints/" + name);
  }
  EXPECT_EQ(Audit(folder, {"--step=17"})["difference"], nullptr);
}

// The steps run again have the run's own schedule and batch, publish nothing
// and need what the run had been allowed to change.
TEST_F(AuditTest, StepsRunAgainAreTheRunsOwn) {
  const std::string folder = MustTrain(
      SmallRun(corpus_)
          .Set("schedule", "kind: COSINE warmup_steps: 2 total_steps: 50")
          .Set("batch", "micro_batch_size: AUTO global_batch_size: 8"));
  EXPECT_EQ(Audit(folder, {"--step=5"})["difference"], nullptr);
  const std::string tools = NewTestFolder("tools");
  WriteText(tools + "/hf",
            absl::StrCat("#!/bin/sh\necho $@ >> ", tools, "/uploads\n"));
  fs::permissions(tools + "/hf", fs::perms::owner_all);
  TrainerOptions options;
  options.environment = {{"PATH", tools + ":/usr/bin:/bin"}};
  const std::string published = MustTrain(
      SmallRun(corpus_).Set("hub_upload", "repo: \"me/mine\""), options);
  ASSERT_TRUE(fs::exists(tools + "/uploads"));
  fs::remove(tools + "/uploads");
  const TrainerResult audit =
      RunTrainer({"audit", published, "--step=5"}, options);
  EXPECT_EQ(audit.exit_code, 0) << audit.err;
  EXPECT_FALSE(fs::exists(tools + "/uploads"));
  ExpectOneError(
      RunTrainer({"audit", folder, "--step=5", "--set", "train.max_steps=4"}),
      {"--set", "train.max_steps is audit's own to set"});
}

// Changes a character of a line, as an editor would.
void Forge(const std::string& folder, size_t line, const std::string& key) {
  const std::string path = folder + kReceipts;
  std::vector<std::string> lines = absl::StrSplit(ReadText(path), '\n');
  Json json = Json::parse(lines[line]);
  std::string text = json[key];
  text.back() = text.back() == '0' ? '1' : '0';
  json[key] = text;
  lines[line] = json.dump();
  std::ofstream(path) << absl::StrJoin(lines, "\n");
}

TEST_F(AuditTest, WhatWasChangedIsNamed) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  Forge(folder, 3, "loss");
  const TrainerResult forged = RunTrainer({"audit", folder});
  ExpectOneError(forged,
                 {"receipts.jsonl: line 4 (step 3) isn't as the run wrote it",
                  "its chain", "[receipts/chain]"});
  const Json audit = Audit(folder, {}, 1);
  EXPECT_EQ(audit["chain"], nullptr);
  EXPECT_THAT(audit["error"].get<std::string>(), HasSubstr("line 4 (step 3)"));
}

TEST_F(AuditTest, ASettingThatChangedIsNamed) {
  const std::string folder =
      MustTrain(SmallRun(corpus_).Train("deterministic: false"));
  constexpr char kRate[] = "optimizer.learning_rate=0.004";
  constexpr char kOther[] = "this isn't the run of the receipts: ";
  // Refused by the checkpoint, and from the beginning.
  for (const char* step : {"--step=5", "--step=1"}) {
    ExpectOneError(
        RunTrainer({"audit", folder, step, "--set", kRate}),
        {absl::StrCat(kOther,
                      "optimizer.learning_rate was 0.003, and now it "
                      "is 0.004 [receipts/differs]")});
    ExpectOneError(
        RunTrainer({"audit", folder, step, "--set", "model.hidden_size=64"}),
        {absl::StrCat(kOther, "model.hidden_size was 32, and now it is 64")});
  }
}

TEST_F(AuditTest, AConfigThatDidNotRunIsAnError) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  const std::string path = folder + "/config.pbtxt";
  std::string config = ReadText(path);
  // Of what may change, a resumed run writes another.
  WriteText(path,
            absl::StrReplaceAll(config, {{"max_steps: 6", "max_steps: 8"}}));
  EXPECT_EQ(Audit(folder)["error"], nullptr);
  WriteText(path,
            absl::StrReplaceAll(config, {{"rate: 0.003", "rate: 0.004"}}));
  const TrainerResult audit = RunTrainer({"audit", folder, "--step=5"});
  ExpectOneError(audit, {"config.pbtxt has optimizer.learning_rate: 0.004, the "
                         "run had 0.003",
                         "[receipts/differs]"});
  EXPECT_THAT(audit.out, HasSubstr("5: the same to the bit"));
  EXPECT_THAT(Audit(folder, {}, 1)["error"].get<std::string>(),
              HasSubstr("config.pbtxt has"));
}

void FlipABitNearTheEnd(const std::string& path) {
  std::string bytes = ReadText(path);
  bytes[bytes.size() - 5] ^= 64;
  WriteText(path, bytes);
}

TEST_F(AuditTest, FinalWeightsThatChangedAreFound) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  const Json names = {"checkpoints/step-00000006", "final"};
  EXPECT_EQ(Audit(folder)["weights"], names);
  EXPECT_THAT(RunTrainer({"verify", folder}).out, HasSubstr("final: whole, "));
  const std::string final = folder + "/final";
  FlipABitNearTheEnd(final + "/model.safetensors");
  ExpectOneError(
      RunTrainer({"audit", folder}),
      {final + ": is damaged: its weights are ", "[checkpoint/damaged]"});
  TrainerResult verified = RunTrainer({"verify", folder});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.out, HasSubstr("final: " + final + ": is damaged"));
  // Somebody who takes the digest away.
  Json capstan = Json::parse(ReadText(final + "/capstan.json"));
  capstan.erase("weights");
  WriteText(final + "/capstan.json", capstan.dump());
  const TrainerResult audit = RunTrainer({"audit", folder, "--step=6"});
  ExpectOneError(audit, {final + " isn't what the receipts have",
                         "after step 6 they have", "[receipts/differs]"});
  EXPECT_THAT(audit.out, HasSubstr("checkpoints/step-00000006: those of"));
  verified = RunTrainer({"verify", folder});
  EXPECT_EQ(verified.exit_code, 0);
  EXPECT_THAT(verified.out, HasSubstr("final: can't be checked"));
}

TEST_F(AuditTest, FinalWeightsOfAnotherDtypeHaveTheirDigestAlone) {
  const std::string folder = MustTrain(SmallRun(corpus_).Precision("bf16"));
  const Json audit = Audit(folder);
  EXPECT_EQ(audit["weights"], Json({"checkpoints/step-00000006"}));
  EXPECT_EQ(audit["not_compared"],
            Json({"final: is stored in BF16, and trained in F32"}));
  fs::remove_all(folder + "/checkpoints");
  EXPECT_EQ(RunTrainer({"verify", folder}).exit_code, 0);
  FlipABitNearTheEnd(folder + "/final/model.safetensors");
  ExpectOneError(RunTrainer({"audit", folder}), {"/final: is damaged: "});
  EXPECT_EQ(RunTrainer({"verify", folder}).exit_code, 1);
}

TEST_F(AuditTest, TheNewestCheckpointIsTheReceipts) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  const std::string checkpoints = folder + "/checkpoints/";
  const std::string state =
      checkpoints + "step-00000006/state-00000-of-00001.safetensors";
  const std::string bytes = ReadText(state);
  WriteText(state, bytes.substr(0, bytes.size() - 8));
  ExpectOneError(RunTrainer({"audit", folder}),
                 {"step-00000006", "is damaged", "[checkpoint/damaged]"});
  WriteText(state, bytes);
  EXPECT_EQ(Audit(folder)["error"], nullptr);
  // Another step's name.
  fs::remove_all(checkpoints + "step-00000002");
  fs::remove_all(checkpoints + "step-00000004");
  fs::rename(checkpoints + "step-00000006", checkpoints + "step-00000004");
  EXPECT_THAT(Audit(folder, {"--step=5"}, 1)["error"].get<std::string>(),
              HasSubstr("step-00000004 holds step 6"));
}

TEST_F(AuditTest, ReceiptsOfAnotherRunAreFound) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  const std::string other = MustTrain(SmallRun(corpus_).Train("seed: 9"));
  for (const char* file : {kReceipts, "/config.pbtxt"}) {
    fs::copy_file(other + file, folder + file,
                  fs::copy_options::overwrite_existing);
  }
  ExpectOneError(RunTrainer({"audit", folder}),
                 {"step-00000006/manifest.json has train.seed: ",
                  "and the receipts train.seed: 9: they are of another run",
                  "[receipts/differs]"});
  fs::remove_all(folder + "/checkpoints");
  ExpectOneError(RunTrainer({"audit", folder}),
                 {"final/README.md names the chain ", "after step 6",
                  "one of the two is of another run", "[receipts/differs]"});
}

TEST_F(AuditTest, WhatIsNoReceiptsFileIsRefusedAtOnce) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  fs::remove(folder + kReceipts);
  ASSERT_EQ(mkfifo((folder + kReceipts).c_str(), 0600), 0);
  ExpectOneError(RunTrainer({"audit", folder}),
                 {"receipts.jsonl isn't a file", "[receipts/chain]"});
}

// Where there is no room for the steps run again.
TEST_F(AuditTest, AWriteThatFailsNamesTheTemporaryFolder) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  TrainerOptions options;
  options.limits[RLIMIT_FSIZE] = 20000;
  const TrainerResult audit =
      RunTrainer({"audit", folder, "--step=1"}, options);
  ExpectOneError(audit,
                 {"running step 1 again failed", "can't be written",
                  "was the temporary folder of the steps run again", "TMPDIR"});
  EXPECT_THAT(audit.err, Not(HasSubstr(folder)));
}

TEST_F(AuditTest, OneProcessRunsTheSteps) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  TrainerOptions options;
  options.environment = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "1"}};
  ExpectOneError(RunTrainer({"audit", folder, "--step=5"}, options),
                 {"audit begins a run on one host", "start it once",
                  "[launch/environment]"});
  // The chain alone needs no run.
  EXPECT_EQ(RunTrainer({"audit", folder}, options).exit_code, 0);
}

TEST_F(AuditTest, LinesCutOffTheEndAreMissed) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  const std::string text = ReadText(folder + kReceipts);
  WriteText(folder + kReceipts, text.substr(0, text.find("{\"step\":6")));
  const TrainerResult audit = RunTrainer({"audit", folder});
  ExpectOneError(audit, {"receipts.jsonl has no line of step 6", "according to",
                         "step-00000006", "[receipts/chain]"});
  EXPECT_THAT(audit.out, HasSubstr("step 6\n"));
  fs::remove_all(folder + "/checkpoints");
  WriteText(folder + kReceipts, text.substr(0, text.find('\n') + 1));
  ExpectOneError(RunTrainer({"audit", folder}),
                 {"has no line of steps 1 to 6", "summary.json"});
  EXPECT_EQ(Audit(folder, {}, 1)["missing"], "1 to 6");
}

TEST_F(AuditTest, ADamagedCheckpointIsToldBehindWhatHolds) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  fs::remove(folder +
             "/checkpoints/step-00000004/state-00000-of-00001.safetensors");
  const TrainerResult audit = RunTrainer({"audit", folder, "--step=5"});
  ExpectOneError(audit, {"running step 5 again failed", "is damaged",
                         "or name a step that another checkpoint is before",
                         "[checkpoint/damaged]"});
  EXPECT_THAT(audit.err, Not(HasSubstr("to resume")));
  EXPECT_THAT(audit.out, HasSubstr("hold: each line"));
}

TEST_F(AuditTest, ARowOfTheDataThatChangedIsNamedByItsStep) {
  // Six steps of eight rows of 32 bytes read all of it.
  const std::string corpus = CorpusPiece(49 * 32);
  const std::string folder = MustTrain(SmallRun(corpus));
  std::string text = ReadText(corpus);
  text[24 * 32 + 7] ^= 1;
  std::ofstream(corpus) << text;
  // A checkpoint knows its data.
  ExpectOneError(RunTrainer({"audit", folder, "--step=6"}),
                 {"this isn't the run of the receipts: train_data was"});
  // The same from the beginning.
  fs::remove_all(folder + "/checkpoints");
  const Json difference = Audit(folder, {"--step=6"}, 1)["difference"];
  EXPECT_EQ(difference["key"], "rows");
  const int step = difference["step"];
  EXPECT_THAT(
      RunTrainer({"audit", folder, "--step=6"}).err,
      AllOf(HasSubstr(absl::StrCat("step ", step, " run again differs")),
            HasSubstr("what is in the rows")));
  // The steps before it are as they were, but not the data.
  if (step > 1) {
    EXPECT_EQ(Audit(folder, {absl::StrCat("--step=", step - 1)},
                    1)["difference"]["key"],
              "run train_data");
  }
}

TEST_F(AuditTest, SignaturesAreOfTheReceipts) {
  const std::string folder = MustTrain(SmallRun(corpus_));
  const std::string key = NewTestFolder("keys") + "/key";
  ASSERT_EQ(std::system(absl::StrCat("openssl genpkey -algorithm ed25519 -out ",
                                     key, ".pem && openssl pkey -in ", key,
                                     ".pem -pubout -out ", key, ".pub")
                            .c_str()),
            0);
  ExpectOneError(
      RunTrainer({"audit", folder, absl::StrCat("--key=", key, ".pub")}),
      {"isn't signed yet", "--sign=key.pem", "[receipts/signature]"});
  Audit(folder, {absl::StrCat("--sign=", key, ".pem")});
  EXPECT_EQ(Audit(folder, {absl::StrCat("--key=", key, ".pub")})["signature"],
            "holds, of step 6");
  // Another run's receipts in their place.
  const std::string other = MustTrain(SmallRun(corpus_).Train("seed: 5"));
  fs::copy_file(other + kReceipts, folder + kReceipts,
                fs::copy_options::overwrite_existing);
  ExpectOneError(
      RunTrainer({"audit", folder, absl::StrCat("--key=", key, ".pub")}),
      {"receipts.sig is of other receipts"});
}

TEST_F(AuditTest, WhatCannotBeCheckedIsTold) {
  const std::string folder =
      MustTrain(SmallRun(corpus_).Train("receipts: false"));
  ExpectOneError(
      RunTrainer({"audit", folder}),
      {"has no receipts.jsonl", "train.receipts=true", "[receipts/none]"});
  WriteText(folder + kReceipts, "{\"step\": 1, \"ro");
  ExpectOneError(RunTrainer({"audit", folder}), {"has no whole line"});
  const std::string with = MustTrain(SmallRun(corpus_));
  ExpectOneError(RunTrainer({"audit", with, "--step=7"}),
                 {"--step", "no step 7, but those from 1 to 6"});
  for (const char* flag :
       {"--step=1,99999999999999999999", "--sample=99999999999999999999"}) {
    ExpectOneError(RunTrainer({"audit", with, flag}),
                   {"must be a whole number up to 9223372036854775807, is "
                    "99999999999999999999"});
  }
}

TEST_F(AuditTest, ACheckpointWithOtherWeightsThanTheChainsIsAnError) {
  RunText run = SmallRun(corpus_).Train("max_steps: 4");
  const std::string folder = MustTrain(run);
  const std::string other = MustTrain(SmallRun(corpus_).Train("seed: 5"));
  fs::copy_file(other + kReceipts, folder + kReceipts,
                fs::copy_options::overwrite_existing);
  fs::remove_all(folder + "/final");
  ExpectOneError(
      RunTrainer({"--config=" + run.Train("max_steps: 6 resume: AUTO")
                                    .Set("schedule",
                                         "kind: COSINE warmup_steps: 2 "
                                         "total_steps: 4")
                                    .Output(folder)
                                    .File()}),
      {"receipts.jsonl", "aren't those that it had after step 4",
       "[receipts/differs]"});
}

}  // namespace
}  // namespace capstan
