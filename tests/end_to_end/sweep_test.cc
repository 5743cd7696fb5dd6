// SPDX-License-Identifier: Apache-2.0
//
// trainer compare with a sweep: settings and seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A sweep over a run of one rank, in a folder of its own, and where it writes.
struct SweepFile {
  explicit SweepFile(const std::string& sweep,
                     const std::string& train = "max_steps: 4 eval_every: 2",
                     const std::string& data =
                         TextData(CorpusPiece(8 << 10), 32,
                                  "validation_fraction: 0.25 shuffle: true"))
      : folder(NewTestFolder("sweep")), output(folder + "/out") {
    WriteText(folder + "/run.pbtxt",
              RunText().Set("train_data", data).Train(train).Text());
    WriteText(folder + "/mine.pbtxt",
              absl::StrCat("config: \"run.pbtxt\" output_dir: \"out\" sweep { ",
                           sweep, " }"));
  }
  std::vector<std::string> Words(std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {"compare", "--config=" + folder + "/mine.pbtxt"});
    return more;
  }
  TrainerResult Run(std::vector<std::string> more = {}) const {
    return RunTrainer(Words(std::move(more)));
  }
  nlohmann::json Report() const { return ReadJson(output + "/report.json"); }

  const std::string folder;
  const std::string output;
};

constexpr char kRates[] =
    "setting { field: \"optimizer.learning_rate\" value: \"1e-9\" "
    "value: \"3e-3\" } ";

TEST(SweepTest, AGridOverSeedsAndATableOfIt) {
  const SweepFile sweep(
      absl::StrCat(kRates,
                   "setting { field: \"strategy\" value: \"capstan.single\" "
                   "value: \"capstan.ddp\" } seed: [1, 2]"));
  const TrainerResult result = sweep.Run();
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.out, AllOf(HasSubstr("ranked by  eval_loss"),
                                HasSubstr("optimizer.learning_rate strategy"),
                                HasSubstr(sweep.output + "/report.html")));
  const nlohmann::json report = sweep.Report();
  ASSERT_EQ(report["points"].size(), 4);
  const nlohmann::json& third = report["points"][2];
  EXPECT_EQ(third["settings"],
            nlohmann::json({{"optimizer.learning_rate", "3e-3"},
                            {"strategy", "capstan.single"}}));
  double mean = 0.0;
  for (const nlohmann::json& run : third["runs"]) {
    const std::string folder =
        absl::StrCat(sweep.output, "/", run["folder"].get<std::string>());
    EXPECT_EQ(run["value"], ReadMetrics(folder).evals.back()["eval_loss"]);
    EXPECT_EQ(run["status"], "completed");
    mean += double{run["value"]} / 2;
  }
  EXPECT_NEAR(third["mean"], mean, 1e-12);
  EXPECT_NE(third["runs"][0]["value"], third["runs"][1]["value"]);
  EXPECT_GT(third["standard_deviation"], 0.0);
  // Both strategies have one curve.
  EXPECT_EQ(report["points"][3]["mean"], third["mean"]);
  EXPECT_EQ(report["ranking"], nlohmann::json({2, 3, 0, 1}));
  EXPECT_THAT(ReadText(sweep.output + "/report.md"), HasSubstr("| 3e-3 |"));
}

TEST(SweepTest, AListTakesValuesTogether) {
  const SweepFile sweep(absl::StrCat(
      kRates,
      "setting { field: \"schedule.warmup_steps\" value: \"0\" value: \"2\" } "
      "order: LIST metric: \"loss\" most_at_once: 1"));
  EXPECT_EQ(sweep.Run().exit_code, 0);
  const nlohmann::json report = sweep.Report();
  ASSERT_EQ(report["points"].size(), 2);
  EXPECT_EQ(report["at_once"], 1);
  EXPECT_EQ(report["points"][1]["settings"]["schedule.warmup_steps"], "2");
  const std::string folder =
      absl::StrCat(sweep.output, "/",
                   report["points"][1]["runs"][0]["folder"].get<std::string>());
  EXPECT_EQ(report["points"][1]["runs"][0]["value"],
            ReadMetrics(folder).losses().back());
}

// What loses ends early; what goes on ends where it would have anyway.
TEST(SweepTest, HalvingEndsWhatLoses) {
  const std::string train = "max_steps: 400 eval_every: 5 log_every: 1";
  const std::string more = absl::StrCat(
      kRates, "most_at_once: 1 halving { first_steps: 5 factor: 2 }");
  const SweepFile sweep(more, train);
  const TrainerResult result = sweep.Run();
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  const nlohmann::json report = sweep.Report();
  const nlohmann::json& loser = report["points"][0];
  const nlohmann::json& winner = report["points"][1];
  EXPECT_EQ(loser["ended_at"], 5);
  EXPECT_EQ(loser["runs"][0]["status"], "stopped");
  EXPECT_LT(loser["runs"][0]["steps"], 400);
  EXPECT_TRUE(winner["ended_at"].is_null());
  EXPECT_EQ(winner["runs"][0]["status"], "completed");
  EXPECT_EQ(report["ranking"], nlohmann::json({1, 0}));
  // It was stopped at the rung, and resumed.
  const SweepFile whole(absl::StrCat(kRates, "most_at_once: 1"), train);
  EXPECT_EQ(whole.Run().exit_code, 0);
  EXPECT_EQ(whole.Report()["points"][1]["mean"], winner["mean"]);
}

// Its evaluation takes longer than the sweep looks away.
TEST(SweepTest, HalvingJudgesByTheEvaluationOfItsStep) {
  const SweepFile sweep(
      absl::StrCat(kRates, "most_at_once: 1 halving { first_steps: 5 }"),
      "max_steps: 7 eval_every: 5",
      TextData(CorpusPiece(200 << 10), 32, "validation_fraction: 0.9"));
  const TrainerResult result = sweep.Run();
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  const nlohmann::json report = sweep.Report();
  EXPECT_EQ(report["points"][0]["ended_at"], 5);
  EXPECT_TRUE(report["points"][0]["mean"].is_number());
  EXPECT_TRUE(report["points"][1]["ended_at"].is_null());
}

TEST(SweepTest, HalvingEndsIfNoPointCanBeJudged) {
  const SweepFile sweep(
      "setting { field: \"optimizer.learning_rate\" value: \"1e-3\" "
      "value: \"3e-3\" } metric: \"eval_typo\" halving { first_steps: 2 }",
      "max_steps: 400 eval_every: 2");
  const TrainerResult result = sweep.Run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no point that went on has a eval_typo"));
  for (const nlohmann::json& point : sweep.Report()["points"]) {
    EXPECT_EQ(point["ended_at"], 2);
  }
}

TEST(SweepTest, AStoppedSweepGoesOn) {
  // The second run has far more steps left than are done until it is told.
  const SweepFile sweep(
      "setting { field: \"train.max_steps\" value: \"6\" value: \"600\" "
      "value: \"8\" } most_at_once: 1",
      "eval_every: 300 save_every: 10");
  const std::string second = sweep.output + "/runs/02-max_steps_600-seed1";
  TrainerProcess process(sweep.Words());
  ASSERT_TRUE(process.WaitUntil([&] { return NewestStep(second) > 0; }));
  process.Signal(SIGINT);
  const TrainerResult stopped = process.Wait();
  EXPECT_EQ(stopped.exit_code, 128 + SIGINT);
  EXPECT_TRUE(stopped.all_gone);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("stopped during the sweep"),
                                 HasSubstr("--resume --output_dir=")));
  EXPECT_THAT(stopped.out,
              AllOf(HasSubstr("run 1 of 3  max_steps=6 seed 1  step 6"),
                    HasSubstr("run 2 of 3  max_steps=600 seed 1  stopped"),
                    Not(HasSubstr("failed"))));
  EXPECT_FALSE(fs::exists(sweep.output + "/report.json"));
  const std::string first =
      sweep.output + "/runs/01-max_steps_6-seed1/summary.json";
  const auto time = fs::last_write_time(first);
  const TrainerResult result =
      sweep.Run({"--resume", "--output_dir=" + sweep.output});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(fs::last_write_time(first), time) << "what is done stays";
  for (const nlohmann::json& point : sweep.Report()["points"]) {
    for (const nlohmann::json& run : point["runs"]) {
      EXPECT_EQ(run["status"], "completed");
    }
  }
  fs::remove(sweep.output + "/report.json");
  ExpectOneError(sweep.Run({"--resume", "--output_dir=" + sweep.output, "--set",
                            "train.max_grad_norm=0.5"}),
                 {"--resume", "other settings"});
}

TEST(SweepTest, APointThatFailsIsInTheTable) {
  const SweepFile sweep(
      "setting { field: \"optimizer.learning_rate\" value: \"1e30\" "
      "value: \"1e-3\" } metric: \"loss\"");
  const TrainerResult result = sweep.Run();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = sweep.Report();
  EXPECT_EQ(report["ranking"], nlohmann::json({1, 0}));
  EXPECT_TRUE(report["points"][0]["mean"].is_null());
}

TEST(SweepTest, Refusals) {
  const auto error_of = [](const std::string& sweep,
                           const std::vector<std::string>& words,
                           std::vector<std::string> more = {}) {
    const SweepFile file(sweep);
    ExpectOneError(file.Run(std::move(more)), words);
    EXPECT_FALSE(fs::exists(file.output)) << "nothing may be made";
  };
  error_of("", {"mine.pbtxt", "sweep", "a single run"});
  error_of(absl::StrCat(kRates, "seed: [1, 2, 1]"),
           {"sweep.seed", "1 is listed twice"});
  error_of("setting { field: \"optimizer.rate\" value: \"1\" value: \"2\" }",
           {"optimizer.rate"});
  error_of("setting { field: \"train.seed\" value: \"1\" value: \"2\" }",
           {"list seeds"});
  error_of(
      "setting { field: \"batch.micro_batch_size\" value: \"3\" "
      "value: \"4\" }",
      {"micro_batch_size=3", "global_batch_size"});
  error_of(absl::StrCat(kRates,
                        "order: LIST setting { field: \"train.max_grad_norm\" "
                        "value: \"1\" }"),
           {"has 1 values", "LIST"});
  error_of(absl::StrCat(kRates, "halving { first_steps: 1 }"),
           {"first_steps", "first evaluation is after 2 steps"});
  error_of(absl::StrCat(kRates, "halving { first_steps: 2 factor: 1 }"),
           {"factor", "2 or more"});
  error_of(kRates, {"optimizer.learning_rate=1", "no run would get this"},
           {"--set", "optimizer.learning_rate=1"});
  error_of(kRates, {"--blame"}, {"--blame"});
  error_of(absl::StrCat(kRates, "} processes: [1, 2] bound { loss: 1"),
           {"processes", "doesn't go with a sweep"});
}

}  // namespace
}  // namespace capstan
