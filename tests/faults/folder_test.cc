// SPDX-License-Identifier: Apache-2.0
//
// A run's folder that is renamed, deleted or robbed of its lock while the run
// writes to it: nothing that existed is lost, and no two runs write to one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
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

// Saves only now and then: what is done between two saves is done long before
// the second.
constexpr int kSaveEvery = 150;

class FolderTest : public ::testing::TestWithParam<int> {
 protected:
  FolderTest()
      : out_(NewTestFolder("run") + "/out"),
        run_(RunText()
                 .Ddp(GetParam())
                 .Batch(1, 4)
                 .Train(absl::StrCat("max_steps: 1000000 resume: AUTO "
                                     "save_every: ",
                                     kSaveEvery))
                 .Output(out_)) {}

  static bool Stopped(pid_t process) {
    const std::string folder = absl::StrCat("/proc/", process, "/task");
    for (const auto& task : fs::directory_iterator(folder)) {
      const std::string stat = ReadText(task.path() / "stat");
      if (stat[stat.rfind(')') + 2] != 'T') return false;
    }
    return true;
  }
  static void StopOrGoOn(const TrainerProcess& run, int signal) {
    for (const pid_t rank : run.Children()) kill(rank, signal);
  }
  // Whether a checkpoint is being written, or was a few steps ago.
  bool Saves() const {
    for (const auto& entry : fs::directory_iterator(out_ + "/checkpoints")) {
      if (entry.path().filename().string()[0] == '.') return true;
    }
    const std::string lines = ReadText(out_ + "/metrics.jsonl");
    return std::count(lines.begin(), lines.end(), '\n') < NewestStep(out_) + 30;
  }
  // What happens while the run does nothing, not even save: a file that it is
  // about to open would be where the folder was.
  void Between(TrainerProcess& run, const std::function<void()>& happens) {
    const auto idle = [&] {
      StopOrGoOn(run, SIGSTOP);
      // A signal is sent before it has stopped all threads.
      for (const pid_t rank : run.Children()) {
        EXPECT_TRUE(run.WaitUntil([rank] { return Stopped(rank); }));
      }
      if (!Saves()) return true;
      StopOrGoOn(run, SIGCONT);
      return false;
    };
    EXPECT_TRUE(run.WaitUntil(idle));
    happens();
    StopOrGoOn(run, SIGCONT);
  }
  // Starts it, and waits until it has saved.
  std::unique_ptr<TrainerProcess> Start() {
    auto process = std::make_unique<TrainerProcess>(
        std::vector<std::string>{"--config=" + run_.File()});
    EXPECT_TRUE(process->WaitUntil([&] { return NewestStep(out_) > 0; }));
    return process;
  }
  // All lines that were there are there, up to the step that was saved last.
  static void ExpectWhole(const std::string& folder, int64_t least) {
    const int64_t saved = NewestStep(folder);
    EXPECT_GT(saved, least);
    const Metrics metrics = ReadMetrics(folder);
    ASSERT_GE(metrics.steps.size(), saved);
    for (int64_t i = 0; i < saved; ++i) {
      ASSERT_EQ(metrics.steps[i]["step"], i + 1);
    }
  }
  TrainerResult GoOn(const std::string& folder) {
    const int64_t step = NewestStep(folder);
    return RunTrainer(
        {"--config=" + RunText(run_)
                           .Train(absl::StrCat("max_steps: ", step + 2))
                           .Output(folder)
                           .File()});
  }

  const std::string out_;
  RunText run_;
};

TEST_P(FolderTest, OneThatWasRenamedGetsTheStepAndIsLeft) {
  const auto process = Start();
  const int64_t saved = NewestStep(out_);
  const std::string moved = out_ + "2";
  Between(*process, [&] { fs::rename(out_, moved); });
  const TrainerResult result = process->Wait();
  ExpectOneError(result, {out_ + " was moved to " + moved, "is saved in",
                          "output_dir=" + moved});
  EXPECT_FALSE(fs::exists(out_));
  ExpectWhole(moved, saved);
  const TrainerResult more = GoOn(moved);
  EXPECT_EQ(more.exit_code, 0) << more.err;
}

TEST_P(FolderTest, ASecondRunInItsPlaceIsLeftAlone) {
  const auto process = Start();
  const std::string moved = out_ + "2";
  std::map<std::string, std::string> second;
  Between(*process, [&] {
    fs::rename(out_, moved);
    MustTrain(RunText().Train("max_steps: 3 save_every: 1").Output(out_));
    second = Snapshot(out_);
  });
  ExpectOneError(process->Wait(), {out_ + " was moved to " + moved});
  EXPECT_EQ(Snapshot(out_), second);
  ExpectWhole(moved, 0);
}

TEST_P(FolderTest, OneThatWasDeletedIsntMadeAgain) {
  const auto process = Start();
  Between(*process, [&] { fs::remove_all(out_); });
  ExpectOneError(process->Wait(), {out_, "was deleted", "isn't saved"});
  EXPECT_FALSE(fs::exists(out_));
}

TEST_P(FolderTest, WithoutItsLockItSavesAndEnds) {
  const auto process = Start();
  const int64_t saved = NewestStep(out_);
  Between(*process, [&] { fs::remove(out_ + "/.lock"); });
  ExpectOneError(process->Wait(),
                 {out_ + " has lost its file .lock", "is saved in " + out_});
  ExpectWhole(out_, saved);
  const TrainerResult more = GoOn(out_);
  EXPECT_EQ(more.exit_code, 0) << more.err;
}

TEST_P(FolderTest, ASecondRunThatFoundItFreeKeepsIt) {
  const auto process = Start();
  std::unique_ptr<TrainerProcess> second;
  Between(*process, [&] {
    const int64_t saved = NewestStep(out_);
    fs::remove(out_ + "/.lock");
    second = std::make_unique<TrainerProcess>(
        std::vector<std::string>{"--config=" + run_.File()});
    EXPECT_TRUE(second->WaitUntil([&] { return NewestStep(out_) > saved; }));
  });
  ExpectOneError(process->Wait(),
                 {out_ + " has lost its file .lock", "another run has it now",
                  absl::StrCat("process ", second->pid()), "isn't saved"});
  const int64_t then = NewestStep(out_);
  EXPECT_TRUE(second->WaitUntil([&] { return NewestStep(out_) > then; }));
  second->Signal(SIGTERM);
  EXPECT_EQ(second->Wait().exit_code, 128 + SIGTERM);
}

TEST_P(FolderTest, WithoutItsLinesNoStepIsSaved) {
  for (const bool cut : {false, true}) {
    fs::remove_all(out_);
    const auto process = Start();
    const std::string lines = out_ + "/metrics.jsonl";
    const auto steps = CheckpointSteps(out_);
    Between(*process, [&] {
      if (cut) {
        fs::resize_file(lines, 100);
      } else {
        fs::remove(lines);
      }
    });
    const TrainerResult result = process->Wait();
    ExpectOneError(
        result,
        {lines, cut ? "another program has cut it" : "was removed or replaced",
         "no step is saved without its line"});
    EXPECT_GE(NewestStep(out_), steps.back());
    const TrainerResult more = GoOn(out_);
    EXPECT_EQ(more.exit_code, 0) << more.err;
    EXPECT_THAT(more.out, AllOf(HasSubstr("metrics.jsonl has no line of"),
                                HasSubstr("it was removed or cut")));
  }
}

INSTANTIATE_TEST_SUITE_P(All, FolderTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace capstan
