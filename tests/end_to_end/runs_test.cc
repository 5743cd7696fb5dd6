// SPDX-License-Identifier: Apache-2.0
//
// trainer runs, over what runs leave behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class RunsTest : public ::testing::Test {
 protected:
  RunsTest() : runs_(NewTestFolder("runs") + "/runs") {
    first_ = Train("first", "1e-3");
    second_ = Train("second", "2e-3");
  }

  std::string Train(const std::string& name, const std::string& rate) {
    const std::string folder = runs_ + "/mine/" + name;
    fs::create_directories(folder);
    return MustTrain(
        RunText()
            .Set("train_data", TextData(CorpusPiece(8 << 10), 32,
                                        "validation_fraction: 0.25"))
            .Set("optimizer",
                 absl::StrCat("[plugin/capstan.adamw.Config] { learning_rate: ",
                              rate, " }"))
            .Train("max_steps: 4 eval_every: 2 save_every: 2")
            .Output(folder));
  }
  TrainerResult Runs(std::vector<std::string> words) const {
    words.insert(words.begin(), "runs");
    return RunTrainer(words);
  }
  nlohmann::json Json(std::vector<std::string> words) const {
    words.push_back("--json");
    const TrainerResult result = Runs(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }

  const std::string runs_;
  std::string first_, second_;
};

TEST_F(RunsTest, FindsTagsAndCompares) {
  const nlohmann::json all = Json({runs_});
  ASSERT_EQ(all.size(), 2);
  EXPECT_EQ(all[0]["status"], "completed");
  EXPECT_EQ(all[0]["steps"], 4);
  const Metrics metrics = ReadMetrics(second_);
  const nlohmann::json fast =
      Json({runs_, "--where=optimizer.learning_rate>1.5e-3"});
  ASSERT_EQ(fast.size(), 1);
  EXPECT_EQ(fast[0]["folder"], second_);
  EXPECT_EQ(fast[0]["metrics"]["loss"], metrics.losses().back());
  EXPECT_EQ(fast[0]["metrics"]["eval_loss"], metrics.evals.back()["eval_loss"]);

  EXPECT_EQ(Runs({"tag", first_, "base"}).exit_code, 0);
  EXPECT_EQ(Json({runs_, "--where=tag=base"})[0]["folder"], first_);
  EXPECT_THAT(Runs({runs_}).out, AllOf(HasSubstr("base"), HasSubstr("4/4")));
  EXPECT_EQ(Runs({"untag", first_, "base"}).exit_code, 0);
  EXPECT_EQ(Json({runs_, "--where=tag=base"}).size(), 0);

  const nlohmann::json diff = Json({"diff", first_, second_});
  EXPECT_EQ(diff["config"]["optimizer.learning_rate"],
            nlohmann::json({"0.001", "0.002"}));
  EXPECT_FALSE(diff["config"].contains("train.max_steps"));
  EXPECT_TRUE(diff["metrics"].contains("eval_loss"));
  // A wide value, and one of several lines, leave the table as it is.
  const std::string wide(60, 'w');
  std::ofstream(second_ + "/config.pbtxt", std::ios::app)
      << "hub_upload {\n  repo: \"" << wide << "\"\n}\n"
      << "eval_sets {\n  name: \"one\\ntwo\"\n}\n";
  EXPECT_THAT(
      Runs({"diff", first_, second_}).out,
      AllOf(HasSubstr("first:  " + first_ + "\nsecond: " + second_ + "\n"),
            ContainsRegex("\nconfig +first +second\n"),
            ContainsRegex("\noptimizer.learning_rate +0.001 +0.002\n"),
            HasSubstr("\neval_sets.name\n  first\n    \n  second\n    one\n"
                      "    two\n"),
            HasSubstr("\n  second\n    " + wide + "\n")));
}

TEST_F(RunsTest, RemovesOnlyWhenTold) {
  const auto before = Snapshot(runs_);
  const TrainerResult dry = Runs({"gc", runs_, "--keep_best=eval_loss"});
  EXPECT_THAT(dry.out, AllOf(HasSubstr("would go"), HasSubstr("has the best"),
                             HasSubstr("--delete")));
  EXPECT_EQ(Snapshot(runs_), before);
  EXPECT_EQ(Runs({"tag", first_, "base"}).exit_code, 0);
  EXPECT_EQ(
      Runs({"gc", runs_, "--keep=0", "--checkpoints", "--delete"}).exit_code,
      0);
  EXPECT_TRUE(fs::exists(first_ + "/checkpoints")) << "it is tagged";
  EXPECT_FALSE(fs::exists(second_ + "/checkpoints"));
  EXPECT_TRUE(fs::exists(second_ + "/final/model.safetensors"));
  EXPECT_THAT(Runs({"gc", runs_, "--keep=0", "--delete"}).out,
              HasSubstr("removed"));
  EXPECT_TRUE(fs::exists(first_));
  EXPECT_FALSE(fs::exists(second_));
}

TEST_F(RunsTest, ClearsAwayTheOthersIfOneCannotBe) {
  fs::remove(second_ + "/.lock");
  fs::create_directory(second_ + "/.lock");  // it can't be locked
  const TrainerResult result = Runs({"gc", runs_, "--keep=0", "--delete"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("1 run could not be removed"));
  EXPECT_THAT(result.out, AllOf(HasSubstr("failed"), HasSubstr(".lock"),
                                HasSubstr("removed")));
  EXPECT_TRUE(fs::exists(second_ + "/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(first_));
}

TEST_F(RunsTest, Refusals) {
  ExpectOneError(Runs({"gc", runs_}), {"say what stays", "--keep=N"});
  ExpectOneError(Runs({"gc", runs_, "--keep_best=eval_los", "--delete"}),
                 {"--keep_best", "eval_los"});
  EXPECT_TRUE(fs::exists(first_) && fs::exists(second_));
  ExpectOneError(Runs({"gc", runs_, "--older_than=nan", "--delete"}),
                 {"--older_than", "a number from 0 on"});
  EXPECT_TRUE(fs::exists(first_) && fs::exists(second_));
  ExpectOneError(Runs({runs_, "--keep=1"}), {"--keep", "runs gc"});
  ExpectOneError(Runs({runs_, "--where=nothing<1"}), {"nothing"});
  ExpectOneError(Runs({runs_, "--where=loss"}), {"--where", "loss"});
  ExpectOneError(Runs({"tag", first_}), {"name a run and its tags"});
  ExpectOneError(Runs({"untag", first_, "x"}), {"has no tag \"x\""});
  ExpectOneError(Runs({"diff", first_}), {"two runs"});
  ExpectOneError(Runs({"tag", runs_, "x"}), {"no run's folder"});
  ExpectOneError(Runs({runs_ + "/nowhere"}), {"isn't a folder"});
  ExpectOneError(Runs({"gc", "/.", "--keep=1"}), {"the whole machine"});
}

// Whoever names a folder writes to no terminal by it.
TEST(RunsOutputTest, HasNoEscapeSequencesOfNames) {
  const std::string root = NewTestFolder("named") + "/\x1b[31mred";
  std::vector<std::string> runs;
  for (const char* name : {"/one", "/two"}) {
    runs.push_back(root + name);
    fs::create_directories(runs.back());
    WriteText(runs.back() + "/config.pbtxt",
              absl::StrCat("name: \"", name, "\"\n"));
    WriteText(runs.back() + "/.lock", "");
    WriteText(runs.back() + "/metrics.jsonl", "{\"step\": 1, \"loss\": 1}\n");
  }
  const std::vector<std::string> calls[] = {
      {"runs", root},
      {"runs", root, "--where=loss<0"},
      {"runs", "tag", runs[0], "base"},
      {"runs", "untag", runs[1], "base"},
      {"runs", "diff", runs[0], runs[1]},
      {"runs", "gc", root, "--keep=0"},
      {"runs", root + "/none"},
      {"watch", root + "/none"},
      {"watch", "--terminal", runs[0]},
      {"track", root + "/none", "--to=csv"},
      {"who", runs[0], "--step=1"},
      {"why-slow", runs[0]},
      {"ls", root}};
  for (const std::vector<std::string>& call : calls) {
    const TrainerResult result = RunTrainer(call);
    EXPECT_THAT(result.out + result.err,
                AllOf(HasSubstr("red"), Not(HasSubstr("\x1b"))))
        << absl::StrJoin(call, " ");
  }
}

}  // namespace
}  // namespace capstan
