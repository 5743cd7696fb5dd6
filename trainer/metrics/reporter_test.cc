// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/reporter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class ReporterTest : public testing::Test {
 protected:
  ReporterTest() {
    facts_.name = "a_run";
    facts_.output_dir =
        testing::TempDir() + "/" +
        testing::UnitTest::GetInstance()->current_test_info()->name();
    facts_.world_size = 2;
    facts_.device = "2 x CPU (1 thread each)";
    facts_.strategy = "ddp";
    facts_.precision = "fp32";
    facts_.parameters = 1049088;
    facts_.micro_batch_size = 8;
    facts_.global_batch_size = 64;
    facts_.accumulation = 4;
    facts_.max_steps = 25;
    std::filesystem::remove_all(facts_.output_dir);
    std::filesystem::create_directories(facts_.output_dir);
  }

  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(facts_.output_dir + "/" + name).rdbuf();
    return text.str();
  }

  // What `use(reporter)` prints on standard output.
  template <typename Use>
  std::string Printed(const Use& use) {
    absl::StatusOr<std::unique_ptr<Reporter>> reporter =
        Reporter::Create(facts_);
    EXPECT_TRUE(reporter.ok()) << reporter.status();
    if (!reporter.ok()) return "";
    testing::internal::CaptureStdout();
    use(reporter->get());
    const std::string printed = testing::internal::GetCapturedStdout();
    status_ = (*reporter)->status();
    return printed;
  }

  static StepMetrics AtStep(int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 4.0 / step;
    metrics.lr = 1e-3;
    metrics.grad_norm = 1.5;
    metrics.step_seconds = 0.25;
    metrics.tokens_per_second = 12345.0;
    return metrics;
  }

  RunFacts facts_;
  absl::Status status_;
};

TEST_F(ReporterTest, Banner) {
  const std::string printed =
      Printed([](Reporter* reporter) { reporter->Banner(); });
  EXPECT_THAT(printed, HasSubstr("a_run\n"));
  EXPECT_THAT(printed, HasSubstr("2 x CPU (1 thread each)"));
  EXPECT_THAT(printed, HasSubstr("1.05 M (1,049,088)"));
  EXPECT_THAT(printed, HasSubstr("64 = micro 8 x 2 ranks x accumulation 4\n"));
  EXPECT_THAT(printed, HasSubstr("steps         25\n"));
  EXPECT_THAT(printed, HasSubstr(facts_.output_dir));
  EXPECT_THAT(printed, Not(HasSubstr("\x1b")));
  EXPECT_THAT(printed, Not(HasSubstr("placed by")));
}

TEST_F(ReporterTest, BannerOfRanksThatAreIdle) {
  facts_.world_size = 3;
  facts_.micro_batch_size = 2;
  facts_.global_batch_size = 16;
  facts_.accumulation = 3;
  EXPECT_THAT(Printed([](Reporter* reporter) { reporter->Banner(); }),
              HasSubstr("16, at most micro 2 x 3 ranks x accumulation 3\n"));
  EXPECT_EQ(BatchText(8, 2, 4, 2, 2),
            "8 = micro 2 x 4 ranks / 2 x "
            "accumulation 2");
}

// Without the save at the end.
TEST_F(ReporterTest, SummaryHasTheSavesWhileTraining) {
  RunSummary summary;
  summary.saving.saves = 1;
  summary.saving.train_seconds = 10.0;
  EXPECT_THAT(Printed([&](Reporter* reporter) { reporter->Finish(summary); }),
              HasSubstr(" in 1 save while training, 0.0 % of the run\n"));
}

TEST_F(ReporterTest, BannerUnderALauncher) {
  facts_.placed_by = "SLURM: job 7, node 0 of 2, rank 0 of 4";
  EXPECT_THAT(Printed([](Reporter* reporter) { reporter->Banner(); }),
              HasSubstr("placed by     SLURM: job 7, node 0 of 2, rank 0 of "
                        "4\n"));
}

TEST_F(ReporterTest, BannerOfBoundRanks) {
  facts_.cores = "0-7 (NUMA 0, near GPU 3)";
  EXPECT_THAT(Printed([](Reporter* reporter) { reporter->Banner(); }),
              HasSubstr("cores         0-7 (NUMA 0, near GPU 3), rank 0\n"));
}

TEST_F(ReporterTest, BannerOfAResumedRun) {
  facts_.first_step = 10;
  EXPECT_THAT(Printed([](Reporter* reporter) { reporter->Banner(); }),
              HasSubstr("25, resumed at step 10\n"));
}

TEST_F(ReporterTest, PlainLinesWhereThereIsNoTerminal) {
  const std::string printed = Printed([](Reporter* reporter) {
    for (int step = 1; step <= 25; ++step) reporter->Step(AtStep(step));
    reporter->Finish(RunSummary());
  });
  std::vector<std::string> lines;
  std::istringstream text(printed);
  for (std::string line; std::getline(text, line) && !line.empty();) {
    lines.push_back(line);
  }
  ASSERT_EQ(lines.size(), 3) << printed;
  EXPECT_THAT(lines[0], HasSubstr("step 10/25  loss 0.4000  lr 1.00e-03"));
  EXPECT_THAT(lines[0], HasSubstr("  12,345 tokens/s  ETA "));
  EXPECT_THAT(lines[1], HasSubstr("step 20/25"));
  EXPECT_THAT(lines[2], HasSubstr("step 25/25"));
  EXPECT_THAT(printed, Not(HasSubstr("\r")));
}

TEST_F(ReporterTest, AStoppedRunShowsItsLastStep) {
  const std::string printed = Printed([](Reporter* reporter) {
    for (int step = 1; step <= 13; ++step) reporter->Step(AtStep(step));
    reporter->Finish(RunSummary());
  });
  EXPECT_THAT(printed, HasSubstr("step 13/25"));
}

TEST_F(ReporterTest, SummaryHasWhatTheLastEvaluationMeasured) {
  RunSummary summary;
  summary.measured = {{"eval/code_loss", 2.5}, {"eval/small_acc", 0.25}};
  summary.best_metric = "eval_small_acc";
  summary.best_value = 0.75;
  summary.best_step = 40;
  const std::string printed =
      Printed([&](Reporter* reporter) { reporter->Finish(summary); });
  EXPECT_THAT(printed, ContainsRegex("eval_code_loss +2.5000\n"));
  EXPECT_THAT(printed,
              ContainsRegex("eval_small_acc +0.2500, best 0.7500 after step "));
  const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(facts_.output_dir + "/summary.json"));
  EXPECT_EQ(json["eval_code_loss"], 2.5);
  EXPECT_EQ(json["best_eval_small_acc"], 0.75);
  EXPECT_TRUE(json["eval_loss"].is_null());
}

TEST_F(ReporterTest, SummaryNamesABetterEvaluation) {
  RunSummary summary;
  summary.measured = {{"eval/loss", 1.75}};
  summary.best_value = 1.5;
  summary.best_step = 40;
  EXPECT_THAT(Printed([&](Reporter* reporter) { reporter->Finish(summary); }),
              HasSubstr("1.7500, best 1.5000 after step 40\n"));
}

TEST_F(ReporterTest, GenerationsBesideThoseBefore) {
  const std::string printed = Printed([](Reporter* reporter) {
    reporter->Generations(0, "before training",
                          {{"int ", "xxx", false}, {"Hello?", "no", true}});
    reporter->Generations(5, "after step 5",
                          {{"int ", "main", false}, {"Hello?", "Hi!", true}});
  });
  EXPECT_THAT(printed, HasSubstr("(step 0) ---\nint xxx\n---\n"));
  EXPECT_THAT(printed, HasSubstr("(step 0) ---\nHello?\nno\n---\n"));
  EXPECT_THAT(printed, HasSubstr("--- sample after step 5 (step 5) ---\nint \n"
                                 "before training "));
  EXPECT_THAT(printed, HasSubstr(" | after step 5\n"));
  EXPECT_THAT(printed, HasSubstr("no                                     | "
                                 "Hi!\n---\n"));
}

TEST_F(ReporterTest, AnEmptyAnswerIsSaidToBeEmpty) {
  const std::string printed = Printed([](Reporter* reporter) {
    reporter->Generations(0, "before training", {{"Hello?", "", true}});
    reporter->Generations(5, "after step 5", {{"Hello?", " \n", true}});
  });
  EXPECT_THAT(printed, HasSubstr("Hello?\n(empty)\n---\n"));
  EXPECT_THAT(printed, HasSubstr("(empty)                                | "
                                 "(white space alone)\n---\n"));
}

TEST_F(ReporterTest, NotesEvaluationsAndSamples) {
  const std::string printed = Printed([](Reporter* reporter) {
    reporter->Note("a note");
    reporter->Eval(20, {{"eval/loss", 1.23456}, {"eval/rewards/chosen", 0.5}});
    reporter->Generations(20, "after training",
                          {{"int ", "x\x1b[2J;\n\xff", false}});
  });
  EXPECT_EQ(printed,
            "a note\n"
            "step 20  eval_loss 1.2346  eval_rewards_chosen 0.5000\n"
            "--- sample after training (step 20) ---\n"
            "int x\xef\xbf\xbd[2J;\n\xef\xbf\xbd\n"
            "---\n");
}

TEST_F(ReporterTest, SummaryOfACompletedRun) {
  RunSummary summary;
  summary.status = "completed";
  summary.steps = 25;
  summary.tokens = 102400;
  summary.parameters = 1049088;
  summary.world_size = 2;
  summary.strategy = "ddp";
  summary.precision = "fp32";
  summary.ready_seconds = 0.61;
  summary.step_seconds_median = 0.0451;
  summary.tokens_per_second = 12345.5;
  summary.bytes_sent_per_step = 5 << 20;
  summary.communication_seconds = 0.04;
  summary.exposed_communication_seconds = 0.0125;
  summary.saving.saves = 4;
  summary.saving.waits = 1;
  summary.saving.save_seconds = 0.25;
  summary.saving.train_seconds = 50.0;
  summary.peak_memory_bytes = {100 << 20, 180 << 20};
  summary.memory_growth_bytes = {60 << 20, 140 << 20};
  summary.memory = {{"parameters", 512, 1024},
                    {"optimizer_state", 0, 0},
                    {"activations", absl::nullopt, 2048},
                    {"logits", 256, absl::nullopt},
                    {"total", absl::nullopt, 3072}};
  summary.final_loss = 1.5;
  summary.measured = {{"eval/loss", 1.75}};
  const std::string printed =
      Printed([&](Reporter* reporter) { reporter->Finish(summary); });
  EXPECT_TRUE(status_.ok()) << status_;
  const Json json = Json::parse(Read("summary.json"));
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  EXPECT_EQ(keys, (std::vector<std::string>{"status",
                                            "steps",
                                            "tokens",
                                            "trained_tokens",
                                            "padding",
                                            "parameters",
                                            "world_size",
                                            "devices",
                                            "strategy",
                                            "precision",
                                            "ready_seconds",
                                            "step_seconds_median",
                                            "tokens_per_second",
                                            "bytes_sent_per_step",
                                            "communication_seconds",
                                            "exposed_communication_seconds",
                                            "saves",
                                            "saves_waited_for",
                                            "save_seconds",
                                            "mirrored_steps",
                                            "mirror_seconds",
                                            "train_seconds",
                                            "peak_memory_bytes",
                                            "memory_growth_bytes",
                                            "process_memory",
                                            "memory",
                                            "train_files",
                                            "eval_files",
                                            "final_loss",
                                            "eval_loss",
                                            "best_eval_loss",
                                            "best_step"}));
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["peak_memory_bytes"],
            (std::vector<int64_t>{100 << 20, 180 << 20}));
  EXPECT_EQ(json["tokens_per_second"], 12345.5);
  EXPECT_EQ(json["eval_loss"], 1.75);
  EXPECT_EQ(json["exposed_communication_seconds"], 0.0125);
  EXPECT_EQ(json["memory"]["parameters"]["predicted"], 512);
  EXPECT_EQ(json["memory"]["parameters"]["measured"], 1024);
  EXPECT_TRUE(json["memory"]["activations"]["predicted"].is_null());
  EXPECT_EQ(json["memory"]["total"]["measured"], 3072);
  EXPECT_FALSE(
      std::filesystem::exists(facts_.output_dir + "/.summary.json.new"));

  EXPECT_THAT(printed, HasSubstr("completed\n"));
  EXPECT_THAT(printed, ContainsRegex("eval_loss +1.7500\n"));
  EXPECT_THAT(
      printed,
      HasSubstr("5.00 MiB sent a step, 40 ms, of which 12.5 ms not hidden\n"));
  EXPECT_THAT(printed, ContainsRegex("  parameters +planned +512 B  "
                                     "measured +1.00 KiB\n"));
  EXPECT_THAT(printed, ContainsRegex("  logits +planned +256 B\n"));
  EXPECT_THAT(printed, ContainsRegex("all tensors +planned +\\?  "
                                     "measured +3.00 KiB\n"));
  EXPECT_THAT(printed, Not(HasSubstr("optimizer state"))) << "there is none";
  EXPECT_THAT(printed, HasSubstr("12,345 tokens/s, 45.1 ms a step\n"));
  EXPECT_THAT(printed, HasSubstr("180 MiB (largest rank)\n"));
}

TEST_F(ReporterTest, GpusTellMore) {
  RunSummary summary;
  summary.world_size = 2;
  summary.mfu = 0.4123;
  summary.gpu_memory = {int64_t{20} << 30, int64_t{66} << 30, int64_t{61} << 30,
                        int64_t{70} << 30};
  summary.peak_memory_bytes = {int64_t{60} << 30, int64_t{61} << 30};
  const auto finish = [&](Reporter* reporter) {
    for (int step = 1; step <= 2; ++step) {
      StepMetrics metrics = AtStep(10 * step);
      metrics.mfu = step == 1 ? 0.25 : 0.5;
      metrics.gpu_memory = summary.gpu_memory;
      reporter->Step(metrics);
    }
    reporter->Finish(summary);
  };
  std::string printed = Printed(finish);
  EXPECT_THAT(printed, HasSubstr("  MFU 25.0 %  GPU 61.0 GiB of 66.0 GiB\n"));
  // Over the recent steps, as the rate of tokens is.
  EXPECT_THAT(printed, ContainsRegex("MFU 3[78]\\.[0-9] %"));
  EXPECT_THAT(printed, ContainsRegex("MFU +41.2 %\n"));
  EXPECT_THAT(printed, HasSubstr("61.0 GiB in tensors, 70.0 GiB reserved "
                                 "(largest rank)\n"));
  const Json json = Json::parse(Read("summary.json"));
  EXPECT_EQ(json["mfu"], 0.4123);
  EXPECT_EQ(json["gpu_memory"]["peak_allocated_bytes"], int64_t{61} << 30);
  EXPECT_EQ(json["gpu_memory"]["peak_reserved_bytes"], int64_t{70} << 30);
  EXPECT_FALSE(json.contains("hfu"));
  summary.hfu = 0.5;
  EXPECT_THAT(Printed(finish),
              HasSubstr("41.2 %, 50.0 % with what is recomputed\n"));
}

TEST_F(ReporterTest, TokensPaddingAndSamples) {
  RunSummary summary;
  summary.tokens = 13104;
  summary.trained_tokens = 9876;
  summary.padding = PaddingShare(13104, 2164);
  EXPECT_THAT(Printed([&](Reporter* reporter) { reporter->Finish(summary); }),
              HasSubstr("13,104, 9,876 of them trained on; padding takes 14.2 "
                        "% of the positions\n"));
  EXPECT_EQ(PaddingShare(0, 0), 0.0);
  facts_.unit = summary.unit = "samples";
  const std::string printed = Printed([&](Reporter* reporter) {
    reporter->Step(AtStep(25));
    reporter->Finish(summary);
  });
  EXPECT_THAT(printed, ContainsRegex("samples +13,104\n"));
  EXPECT_THAT(printed, HasSubstr("12,345 samples/s"));
  EXPECT_THAT(printed, Not(HasSubstr("token")));
  EXPECT_THAT(Read("summary.json"), HasSubstr("\"samples\": 13104"));
  EXPECT_THAT(Read("summary.json"), HasSubstr("\"samples_per_second\""));
  EXPECT_THAT(Read("summary.json") + Read("metrics.jsonl"),
              Not(HasSubstr("token")));
}

TEST_F(ReporterTest, SummaryCountsTheFilesThatWereRead) {
  RunSummary summary;
  summary.train_files = {{"a.jsonl.gz", {{"bytes", 100}, {"members", 2}}},
                         {"b.jsonl", {{"rows", 7}}}};
  Printed([&](Reporter* reporter) { reporter->Finish(summary); });
  const Json json = Json::parse(Read("summary.json"));
  EXPECT_EQ(json.at("train_files"),
            Json::parse(R"([{"path": "a.jsonl.gz", "bytes": 100, "members": 2},
                            {"path": "b.jsonl", "rows": 7}])"));
  EXPECT_EQ(json.at("eval_files"), Json::array());
}

TEST_F(ReporterTest, SummaryWithoutLosses) {
  RunSummary summary;
  summary.status = "stopped";
  summary.ready_seconds = NAN;
  Printed([&](Reporter* reporter) { reporter->Finish(summary); });
  const Json json = Json::parse(Read("summary.json"));
  EXPECT_TRUE(json.at("final_loss").is_null());
  EXPECT_TRUE(json.at("eval_loss").is_null());
  EXPECT_TRUE(json.at("ready_seconds").is_null());
  EXPECT_TRUE(json.at("peak_memory_bytes").is_array());
  EXPECT_TRUE(json.at("communication_seconds").is_null());
  EXPECT_TRUE(json.at("memory").is_object());
}

TEST_F(ReporterTest, WritesEveryStepAndEvaluation) {
  Printed([](Reporter* reporter) {
    reporter->Step(AtStep(1));
    reporter->Eval(1, {{"eval/loss", 3.0}});
    reporter->Step(AtStep(2));
  });
  const std::string text = Read("metrics.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  EXPECT_FALSE(std::filesystem::is_empty(facts_.output_dir + "/tensorboard"));
}

TEST_F(ReporterTest, AnOutputThatCannotBeOpened) {
  const std::string path = facts_.output_dir + "/metrics.jsonl";
  std::filesystem::create_directory(path);
  EXPECT_EQ(Reporter::Create(facts_).status().message(),
            path + " can't be written: Is a directory");
}

TEST_F(ReporterTest, KeepsTheFirstWritingError) {
  const std::string path = facts_.output_dir + "/metrics.jsonl";
  std::filesystem::create_symlink("/dev/full", path);
  std::filesystem::create_directory(facts_.output_dir + "/summary.json");
  Printed([this](Reporter* reporter) {
    EXPECT_TRUE(reporter->status().ok());
    reporter->Step(AtStep(1));
    reporter->Finish(RunSummary());
  });
  EXPECT_EQ(status_.message(),
            path + " can't be written: No space left on device");
}

TEST_F(ReporterTest, ASummaryThatCannotBeWritten) {
  std::filesystem::create_directory(facts_.output_dir + "/summary.json");
  Printed([](Reporter* reporter) { reporter->Finish(RunSummary()); });
  EXPECT_EQ(status_.message(), facts_.output_dir +
                                   "/summary.json can't be written: Is a "
                                   "directory");
}

}  // namespace
}  // namespace capstan
