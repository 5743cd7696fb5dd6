// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints that are written while training goes on; damaged ones; and a
// line that can't be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWeights[] = "/final/model.safetensors";

RunText SmallRun(const std::string& strategy) {
  return RunText().Strategy(strategy, 2).Batch(4, 8);
}

std::string StepFolder(const std::string& folder, int step) {
  return absl::StrFormat("%s/checkpoints/step-%08d", folder, step);
}

void FlipAByte(const std::string& path) {
  std::string bytes = ReadText(path);
  bytes[bytes.size() - 100] ^= 1;
  WriteText(path, bytes);
}

TEST(BackgroundSaveTest, TheSameFilesAsInTheForeground) {
  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    const RunText run = SmallRun(strategy).Train("save_every: 2");
    const std::string one = MustTrain(RunText(run).Train("saving: FOREGROUND"));
    const std::string other = MustTrain(RunText(run));
    EXPECT_EQ(CheckpointSteps(one), CheckpointSteps(other));
    for (const int step : {4, 6}) {
      for (const auto& entry : fs::directory_iterator(StepFolder(one, step))) {
        const std::string name = entry.path().filename().string();
        // The manifest has the run's config, which says how it saves.
        if (name == "manifest.json") continue;
        EXPECT_TRUE(ReadText(entry.path().string()) ==
                    ReadText(StepFolder(other, step) + "/" + name))
            << name;
      }
    }
    const nlohmann::json summary = ReadJson(other + "/summary.json");
    EXPECT_EQ(summary["saves"], 2);
    EXPECT_GT(summary["save_seconds"], 0.0);
    EXPECT_GT(summary["train_seconds"], summary["save_seconds"]);
  }
}

// At random moments, while saves are under way: the newest is always whole, and
// the run goes on from it as if nothing had been.
TEST(BackgroundSaveTest, KilledWhileAThreadWrites) {
  std::mt19937 random(17);
  const RunText base = SmallRun("fsdp").Train("max_steps: 1000000");
  const RunText run = RunText(base)
                          .Train("save_every: 2 resume: AUTO")
                          .Output(NewTestFolder("run") + "/out");
  const std::string& folder = run.output();
  int64_t newest = 0;
  for (int i = 0; i < 4; ++i) {
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitUntil([&] {
      return NewestStep(folder) >= newest + 2;
    })) << process.Wait().err;
    // sleeps: a random moment
    usleep(random() % 60000);
    const std::vector<pid_t> ranks = process.Children();
    process.Signal(SIGKILL);
    for (const pid_t rank : ranks) kill(rank, SIGKILL);
    EXPECT_TRUE(process.Wait().all_gone);
    const TrainerResult verified = RunTrainer({"verify", folder});
    EXPECT_EQ(verified.exit_code, 0) << verified.out;
    const std::vector<int64_t> steps = CheckpointSteps(folder);
    ASSERT_FALSE(steps.empty());
    EXPECT_GE(steps.back(), newest + 2);
    newest = steps.back();
  }
  const std::string last = absl::StrCat("max_steps: ", newest + 2);
  MustTrain(RunText(run).Train(last));
  const std::string straight = MustTrain(RunText(base).Train(last));
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

// Room for metrics, not for a checkpoint.
TEST(BackgroundSaveTest, AFailedWriteEndsTheRunAndNamesRankAndFile) {
  const RunText run = SmallRun("ddp")
                          .Train("max_steps: 100000 save_every: 3")
                          .Output(NewTestFolder("run") + "/out");
  TrainerOptions options;
  options.limits[RLIMIT_FSIZE] = 50000;
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  ExpectOneError(result, {"[rank ", "/checkpoints/.step-00000003.tmp-",
                          "/state-", "can't be written: File too large"});
}

class DamagedTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DamagedTest, TheCheckpointBeforeIsTaken) {
  const RunText run = SmallRun("zero2")
                          .Train("max_steps: 4 save_every: 2 resume: AUTO")
                          .Output(NewTestFolder("run") + "/out");
  MustTrain(run);
  const std::string& folder = run.output();
  const std::string straight =
      MustTrain(SmallRun("zero2").Train("max_steps: 6"));
  const std::string file = StepFolder(folder, 4) + "/" + GetParam();
  FlipAByte(file);

  const TrainerResult verified = RunTrainer({"verify", folder});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.out,
              AllOf(HasSubstr("step-00000002: whole, "),
                    HasSubstr("step-00000004: " + file + ": is damaged: ")));
  fs::resize_file(file, fs::file_size(file) - 10);
  const TrainerResult listed = RunTrainer({"ls", "--output_dir", folder});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, AllOf(HasSubstr("step-00000002"), HasSubstr("whole"),
                                HasSubstr("2 ranks"), HasSubstr("damaged")));

  const TrainerResult result =
      RunTrainer({"--config=" + RunText(run).Train("max_steps: 6").File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr(file + ": is damaged: "),
                    HasSubstr("; goes on from " + StepFolder(folder, 2))));
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_EQ(RunTrainer({"verify", folder}).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedTest,
                         ::testing::Values("state-00001-of-00002.safetensors",
                                           "tokenizer.json"));

TEST(LsTest, AFolderWithoutCheckpointsIsAnError) {
  const std::string folder = NewTestFolder("empty");
  for (const char* command : {"ls", "verify"}) {
    ExpectOneError(RunTrainer({command, folder}),
                   {folder, "has no checkpoints"});
    ExpectOneError(RunTrainer({command, folder + "/none"}),
                   {folder + "/none", "isn't a folder"});
    ExpectOneError(RunTrainer({command}), {"name a run's folder"});
  }
}

TEST(LsTest, AFoldersNameNeedntBeUtf8) {
  const std::string folder = NewTestFolder("latin-\xe9");
  fs::create_directories(StepFolder(folder, 1));
  const TrainerResult listed = RunTrainer({"ls", "--json", folder});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_TRUE(nlohmann::json::accept(listed.out)) << listed.out;
}

// A disk that is full when a step's line is written and has room when the step
// is saved: the line must not be lost.
TEST(SaveOnFullDiskTest, AStepWithoutItsLineIsNotSaved) {
  const RunText run = SmallRun("ddp")
                          .Train("max_steps: 4 save_every: 1 resume: AUTO")
                          .Output(NewTestFolder("run") + "/out");
  const std::string& folder = run.output();
  MustTrain(RunText(run).Train("max_steps: 2"));
  // Another line of step 2 fills the file up to the limit, which leaves room
  // for checkpoints.
  constexpr int64_t kLimit = 2000000;
  const std::string path = folder + "/metrics.jsonl";
  const std::string lines = ReadText(path);
  const std::string begin = "{\"step\": 2, \"filler\": \"";
  const std::string end = "\"}\n";
  WriteText(path, lines + begin +
                      std::string(kLimit - 10 - lines.size() - begin.size() -
                                      end.size(),
                                  'x') +
                      end);
  TrainerOptions options;
  options.limits[RLIMIT_FSIZE] = kLimit;
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  ExpectOneError(result, {path, "File too large"});
  EXPECT_THAT(CheckpointSteps(folder), ElementsAre(1, 2));
  MustTrain(run);
  EXPECT_EQ(ReadMetrics(folder).Values("step"),
            (std::vector<double>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace capstan
