// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "desk/run_folder/config_fields.h"
#include "desk/run_folder/run_record.h"
#include "desk/runs/clear_away.h"
#include "desk/runs/conditions.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"(name: "mine"
output_dir: "/runs/mine/a"
model {
  [plugin/capstan.llama.Config] {
    pretrained: "/models/with \"quotes\""
  }
}
optimizer {
  [plugin/capstan.adamw.Config] {
    learning_rate: 0.003
  }
}
train {
  max_steps: 6
  sample_prompts {
    prompt: "a: {"
  }
  sample_prompts {
    prompt: "}"
  }
}
eval_sets {
  name: "held"
  data {
    [plugin/capstan.text.Config] {
      tokenizer {
        bytes {
        }
      }
    }
  }
}
complete: true
)";

TEST(FieldsOfConfigTest, PathsAreThoseOfSet) {
  const FieldLists fields = FieldsOfConfig(kConfig);
  const std::map<std::string, std::vector<std::string>> wanted = {
      {"name", {"mine"}},
      {"output_dir", {"/runs/mine/a"}},
      {"model", {"capstan.llama"}},
      {"model.pretrained", {"/models/with \"quotes\""}},
      {"optimizer", {"capstan.adamw"}},
      {"optimizer.learning_rate", {"0.003"}},
      {"train.max_steps", {"6"}},
      {"train.sample_prompts.prompt", {"a: {", "}"}},
      {"eval_sets.name", {"held"}},
      {"eval_sets.data", {"capstan.text"}},
      {"complete", {"true"}}};
  EXPECT_EQ(fields, wanted);
}

class RunsTest : public ::testing::Test {
 protected:
  RunsTest() {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    root_ = fs::canonical(root_).string();
  }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
  }
  // A run of this name that began at that second, with a last eval_loss.
  std::string NewRun(const std::string& name, int began, double eval_loss,
                     const std::string& config = "") {
    const std::string folder = absl::StrCat(root_, "/", name, "/", began);
    Write(folder + "/config.pbtxt",
          absl::StrCat("name: \"", name, "\"\n", config));
    Write(folder + "/.lock", "");
    Write(folder + "/metrics.jsonl",
          absl::StrCat("{\"step\": 1, \"time\": ", began, ", \"loss\": 3.5}\n",
                       "{\"step\": 1, \"eval_loss\": ", eval_loss - 0.5,
                       ", \"eval_accuracy\": 0.25}\n",
                       "{\"step\": 2, \"time\": ", began + 7,
                       ", \"loss\": 2.5}\n", "{\"step\": 2, \"eval_loss\": ",
                       eval_loss, ", \"eval_accuracy\": 0.5}\n"));
    Write(folder + "/summary.json",
          "{\"status\": \"completed\", \"steps\": 2}");
    Checkpoint(folder, 2);
    return folder;
  }
  void Checkpoint(const std::string& folder, int step) {
    const std::string path =
        absl::StrCat(folder, "/checkpoints/step-0000000", step);
    Write(path + "/manifest.json", "{}");
    Write(path + "/x", std::string(1000, 'x'));
  }
  std::vector<ListedRun> All() const {
    std::vector<ListedRun> runs;
    for (const std::string& folder : RunsBelow(root_)) {
      runs.push_back(ReadListedRun(folder));
    }
    return runs;
  }
  // Why each run stays, by its folder from the root; "" if it goes.
  std::map<std::string, std::string> Why(const ClearRule& rule) const {
    const std::vector<ListedRun> runs = All();
    std::map<std::string, std::string> why;
    for (const Verdict& verdict :
         Judge(runs, runs, rule, absl::FromUnixSeconds(200000))) {
      why[verdict.run->folder.substr(root_.size() + 1)] = verdict.keeps;
    }
    return why;
  }

  std::string root_ = ::testing::TempDir() + "/runs-XXXXXX";
};

TEST_F(RunsTest, WhatAFolderSaysOfItsRun) {
  const std::string folder =
      NewRun("a", 1000, 2.0, "train {\n max_steps: 9\n}\n");
  const ListedRun run = ReadListedRun(folder);
  EXPECT_EQ(run.name, "a");
  EXPECT_EQ(run.begun, absl::FromUnixSeconds(1000));
  EXPECT_EQ(run.status, RunStatus::kCompleted);
  EXPECT_EQ(run.steps, 2);
  EXPECT_EQ(run.max_steps, 9);
  EXPECT_EQ(run.Metric("loss"), 2.5);
  EXPECT_EQ(run.Metric("eval_loss"), 2.0);
  EXPECT_EQ(run.Metric("best_eval_loss"), 1.5) << "lower is better";
  EXPECT_EQ(run.Metric("best_eval_accuracy"), 0.5) << "higher is better";
  EXPECT_FALSE(run.Metric("perplexity").has_value());
  EXPECT_GT(run.bytes, 1000);
}

// As a copy of the folder has them, whose files are of now.
TEST_F(RunsTest, HowLongARunTookIsInItsLines) {
  const std::string folder = NewRun("a", 1000, 2.0);
  EXPECT_EQ(ReadListedRun(folder).seconds, 7.0);
  Write(folder + "/events.jsonl",
        "{\"time\": 940, \"kind\": \"start\"}\n"
        "{\"time\": 1030, \"kind\": \"end\"}\n{\"time\": 1");
  EXPECT_EQ(ReadListedRun(folder).begun, absl::FromUnixSeconds(940));
  EXPECT_EQ(ReadListedRun(folder).seconds, 90.0);
}

// What summary.json says is of the process before.
TEST_F(RunsTest, ARunThatWentOnAndWasKilledIsNotCompleted) {
  const std::string folder = NewRun("a", 1000, 2.0);
  const std::string events = folder + "/events.jsonl";
  const std::string once = "{\"kind\":\"start\"}\n{\"kind\":\"end\"}\n";
  Write(events, once);
  EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kCompleted);
  for (const char* kind : {"start", "resume", "restart"}) {
    Write(events, absl::StrCat(once, "{\"kind\":\"", kind, "\"}\n"));
    EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kFailed) << kind;
    Write(events, absl::StrCat(once, "{\"kind\":\"", kind,
                               "\"}\n{\"kind\":\"stop\"}\n"));
    EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kCompleted) << kind;
  }
}

TEST_F(RunsTest, AnOlderRunThatWentOnHasStepsBeyondItsSummary) {
  const std::string folder = NewRun("a", 1000, 2.0);
  Write(folder + "/metrics.jsonl", "{\"step\":2}\n{\"step\":3,\"loss\":1}\n");
  EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kFailed);
}

// `cp -r` gives its files other times, in any order.
TEST_F(RunsTest, ACopiedRunIsAsTheRunWas) {
  const std::string folder = NewRun("a", 1000, 2.0);
  fs::last_write_time(
      folder + "/config.pbtxt",
      fs::last_write_time(folder + "/summary.json") + std::chrono::seconds(60));
  EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kCompleted);
}

TEST_F(RunsTest, RunsWhileItsLockIsHeld) {
  const std::string folder = NewRun("a", 1000, 2.0);
  EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kCompleted);
  const int fd = open((folder + "/.lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kRunning);
  close(fd);
  // Looking takes no lock from a run.
  EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kCompleted);
  fs::remove(folder + "/summary.json");
  EXPECT_EQ(ReadListedRun(folder).status, RunStatus::kFailed);
}

TEST_F(RunsTest, Tags) {
  const std::string folder = NewRun("a", 1000, 2.0);
  EXPECT_TRUE(ReadTags(folder).empty());
  ASSERT_TRUE(SetTags(folder, {"base", "for the paper"}).ok());
  EXPECT_THAT(ReadTags(folder), ElementsAre("base", "for the paper"));
  EXPECT_FALSE(SetTags(folder, {"a\nb"}).ok());
  EXPECT_FALSE(SetTags(folder, {""}).ok());
  ASSERT_TRUE(SetTags(folder, {}).ok());
  EXPECT_FALSE(fs::exists(folder + "/tags.txt"));
}

TEST_F(RunsTest, Conditions) {
  const ListedRun run = ReadListedRun(NewRun("a", 1000, 2.0, kConfig));
  const auto meets = [&](const char* text) {
    const auto condition = ParseCondition(text);
    EXPECT_TRUE(condition.ok()) << condition.status();
    return Meets(run, *condition);
  };
  for (const char* text :
       {"optimizer.learning_rate<1e-2", "optimizer.learning_rate = 3e-3",
        "optimizer=capstan.adamw", "optimizer!=capstan.sgd", "eval_loss<=2",
        "steps>1", "status=completed", "model.pretrained~quotes",
        "train.sample_prompts.prompt=}", "tag!=base", "best_eval_loss==1.5"}) {
    EXPECT_TRUE(meets(text)) << text;
  }
  for (const char* text :
       {"optimizer.learning_rate>1e-2", "optimizer<1", "eval_loss<2",
        "nothing>0", "nothing=0", "name!=a", "tag=base"}) {
    EXPECT_FALSE(meets(text)) << text;
  }
  for (const char* text :
       {"", "loss", "<3", "loss<", "loss<low", "loss!3", "loss<nan"}) {
    EXPECT_THAT(std::string(ParseCondition(text).status().message()),
                AllOf(HasSubstr("--where"), HasSubstr(text)));
  }
}

TEST_F(RunsTest, NewestBestAndYoungStay) {
  NewRun("a", 1000, 2.0);
  NewRun("a", 2000, 1.0);
  NewRun("a", 3000, 3.0);
  NewRun("b", 500, 9.0);
  ClearRule rule;
  rule.newest = 1;
  EXPECT_EQ(Why(rule), (std::map<std::string, std::string>{
                           {"a/1000", ""},
                           {"a/2000", ""},
                           {"a/3000", "among the newest"},
                           {"b/500", "among the newest"}}));
  rule.newest = 0;
  rule.best = "eval_loss";
  EXPECT_EQ(Why(rule), (std::map<std::string, std::string>{
                           {"a/1000", ""},
                           {"a/2000", "has the best eval_loss"},
                           {"a/3000", ""},
                           {"b/500", "has the best eval_loss"}}));
  rule.best = absl::nullopt;
  rule.younger_days = 198500.0 / 86400;
  EXPECT_EQ(Why(rule)["a/1000"], "");
  EXPECT_THAT(Why(rule)["a/2000"], HasSubstr("younger"));
}

TEST_F(RunsTest, ANameWithoutTheMetricStays) {
  NewRun("a", 1000, 2.0);
  const std::string without = NewRun("b", 1000, 2.0);
  Write(without + "/metrics.jsonl", "{\"step\": 1, \"loss\": 3.5}\n");
  ClearRule rule;
  rule.best = "eval_loss";
  EXPECT_EQ(Why(rule), (std::map<std::string, std::string>{
                           {"a/1000", "has the best eval_loss"},
                           {"b/1000", "no run of this name has eval_loss"}}));
}

// A user's folder may have a config.pbtxt, and anything else.
TEST_F(RunsTest, WhatMayNotBeARunStays) {
  const std::string unlocked = NewRun("a", 1000, 2.0);
  fs::remove(unlocked + "/.lock");
  const std::string unmeasured = NewRun("b", 1000, 2.0);
  fs::remove(unmeasured + "/metrics.jsonl");
  const std::string young = NewRun("c", 1000, 2.0);
  fs::rename(young + "/metrics.jsonl", young + "/events.jsonl");
  const std::string around = NewRun("d", 1000, 2.0);
  Write(around + "/more/deeper/config.pbtxt", "name: \"e\"\n");
  ClearRule rule;
  rule.newest = 0;
  auto why = Why(rule);
  EXPECT_THAT(why["a/1000"], HasSubstr("may not be a run"));
  EXPECT_THAT(why["b/1000"], HasSubstr("may not be a run"));
  EXPECT_EQ(why["c/1000"], "");
  EXPECT_EQ(why["d/1000"], "another run is below it");
}

// final/ is of the run's first end; it went on, and was stopped or killed.
TEST_F(RunsTest, TheNewestWeightsStay) {
  const std::string folder = NewRun("a", 1000, 2.0);
  Write(folder + "/final/model.safetensors", "w");
  ClearRule rule;
  rule.newest = 0;
  rule.only_checkpoints = true;
  EXPECT_EQ(Why(rule)["a/1000"], "");
  const std::string newest = "its newest weights are in its checkpoints";
  Checkpoint(folder, 6);
  EXPECT_EQ(Why(rule)["a/1000"], newest)
      << "killed: the summary is the old one";
  Write(folder + "/summary.json", "{\"status\": \"stopped\", \"steps\": 6}");
  EXPECT_EQ(Why(rule)["a/1000"], newest);
  // Trained anew in the same folder.
  Write(folder + "/summary.json", "{\"status\": \"completed\", \"steps\": 9}");
  fs::last_write_time(
      folder + "/final/model.safetensors",
      fs::last_write_time(folder + "/checkpoints/step-00000006/manifest.json") -
          std::chrono::hours(1));
  EXPECT_EQ(Why(rule)["a/1000"], newest);
}

TEST_F(RunsTest, OneThatIsTaggedAfterTheVerdictStays) {
  const std::string folder = NewRun("a", 1000, 2.0);
  const ListedRun record = ReadListedRun(folder);
  Verdict verdict;
  verdict.run = &record;
  ASSERT_TRUE(SetTags(folder, {"keep"}).ok());
  EXPECT_THAT(std::string(Remove(verdict, false).message()),
              HasSubstr("tagged"));
  EXPECT_TRUE(fs::exists(folder + "/metrics.jsonl"));
}

TEST_F(RunsTest, RunningTaggedAndUsedOnesAlwaysStay) {
  const std::string tagged = NewRun("a", 1000, 2.0);
  ASSERT_TRUE(SetTags(tagged, {"keep"}).ok());
  const std::string used = NewRun("a", 2000, 2.0);
  const std::string user =
      NewRun("b", 3000, 2.0,
             absl::StrCat("model {\n  pretrained: \"", used, "/final\"\n}\n"));
  // Its own folder, and one whose name only begins like another's.
  const std::string other =
      NewRun("c", 200, 2.0,
             absl::StrCat("output_dir: \"", root_, "/c/200\"\ndata: \"", root_,
                          "/a/10000\"\n"));
  const std::string running = NewRun("d", 4000, 2.0);
  const int fd = open((running + "/.lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  ClearRule rule;
  rule.newest = 0;
  EXPECT_EQ(Why(rule),
            (std::map<std::string, std::string>{{"a/1000", "tagged"},
                                                {"a/2000", "used by " + user},
                                                {"b/3000", ""},
                                                {"c/200", ""},
                                                {"d/4000", "running"}}));
  // One that begins between the verdict and the removal.
  const ListedRun record = ReadListedRun(running);
  Verdict verdict;
  verdict.run = &record;
  EXPECT_FALSE(Remove(verdict, false).ok());
  EXPECT_TRUE(fs::exists(running + "/metrics.jsonl"));
  close(fd);
}

TEST_F(RunsTest, RemovesARunOrItsCheckpoints) {
  const std::string older = NewRun("a", 1000, 2.0);
  const std::string newer = NewRun("a", 2000, 2.0);
  Write(root_ + "/a/latest", "2000\n");
  ClearRule rule;
  rule.newest = 0;
  rule.only_checkpoints = true;
  EXPECT_EQ(Why(rule)["a/1000"], "its newest weights are in its checkpoints");
  Write(older + "/final/model.safetensors", "w");
  EXPECT_EQ(Why(rule)["a/1000"], "");
  const ListedRun first = ReadListedRun(older), second = ReadListedRun(newer);
  Verdict verdict;
  verdict.run = &first;
  ASSERT_TRUE(Remove(verdict, /*only_checkpoints=*/true).ok());
  EXPECT_FALSE(fs::exists(older + "/checkpoints"));
  EXPECT_TRUE(fs::exists(older + "/final/model.safetensors"));
  // `latest` is the newest that is left.
  verdict.run = &second;
  ASSERT_TRUE(Remove(verdict, /*only_checkpoints=*/false).ok());
  EXPECT_FALSE(fs::exists(newer));
  std::ifstream latest(root_ + "/a/latest");
  std::string name;
  EXPECT_TRUE(std::getline(latest, name));
  EXPECT_EQ(name, "1000");
}

}  // namespace
}  // namespace capstan
