// SPDX-License-Identifier: Apache-2.0
#include "desk/forget/run_without.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/files.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

RunSnapshot At(int64_t step, int64_t samples) {
  RunSnapshot snapshot;
  snapshot.path = "step-" + std::to_string(step);
  snapshot.manifest.train_state.step = step;
  snapshot.manifest.train_state.samples = samples;
  return snapshot;
}

// 4 steps of 8 samples, then some of 4.
const std::vector<RunSnapshot>& Snapshots() {
  static const auto* const snapshots =
      new std::vector<RunSnapshot>({At(2, 16), At(4, 32), At(10, 56)});
  return *snapshots;
}

TEST(RunWithoutTest, TheStepOfAPosition) {
  for (const auto& [position, step] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1},
                                                {7, 1},
                                                {8, 2},
                                                {15, 2},
                                                {16, 3},
                                                {31, 4},
                                                {32, 5},
                                                {36, 6},
                                                {55, 10}}) {
    EXPECT_EQ(StepAt(position, Snapshots()), step) << position;
  }
}

TEST(RunWithoutTest, TheNewestSnapshotBeforeARow) {
  EXPECT_EQ(LastBefore(15, false, Snapshots()), nullptr);
  EXPECT_EQ(LastBefore(16, false, Snapshots())->path, "step-2");
  EXPECT_EQ(LastBefore(31, false, Snapshots())->path, "step-2");
  EXPECT_EQ(LastBefore(32, false, Snapshots())->path, "step-4");
  EXPECT_EQ(LastBefore(56, false, Snapshots())->path, "step-10");
}

// final/ may get the weights of the best evaluation.
TEST(RunWithoutTest, AndOneWhoseBestIsThere) {
  std::vector<RunSnapshot> snapshots = Snapshots();
  snapshots[0].manifest.train_state.best_step = 2;
  snapshots[1].manifest.train_state.best_step = 3;  // it is gone
  snapshots[2].manifest.train_state.best_step = 2;
  EXPECT_EQ(LastBefore(40, true, snapshots)->path, "step-2");
  EXPECT_EQ(LastBefore(40, false, snapshots)->path, "step-4");
  EXPECT_EQ(LastBefore(56, true, snapshots)->path, "step-10");
  snapshots[0].manifest.train_state.best_step = 1;
  EXPECT_EQ(LastBefore(40, true, snapshots), nullptr);
}

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/forget-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

TEST(RunWithoutTest, ARunWithoutCheckpointsSaysSo) {
  const std::string folder = NewFolder();
  EXPECT_THAT(std::string(SnapshotsOf(folder).status().message()),
              HasSubstr("has no checkpoint"));
}

TEST(RunWithoutTest, WhyACheckpointIsPassedOverIsTold) {
  const std::string folder = NewFolder();
  const std::string path = folder + "/checkpoints/step-00000002";
  fs::create_directories(path + "/manifest.json");  // it can't be read
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(SnapshotsOf(folder).ok());
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(warning, HasSubstr("step-00000002 is passed over: "));
  EXPECT_THAT(warning, HasSubstr("manifest.json"));
}

// The new run goes on there.
TEST(RunWithoutTest, OfAReadOnlyRunTheNewFoldersAreWritable) {
  const std::string run = NewFolder();
  const std::string to = NewFolder() + "/new";
  RunSnapshot snapshot = At(2, 16);
  snapshot.path = run + "/checkpoints/step-00000002";
  fs::create_directories(snapshot.path + "/rank");
  std::ofstream(snapshot.path + "/rank/state") << "whole";
  const auto read_only = fs::perms::owner_read | fs::perms::owner_exec;
  for (const char* name : {"/rank", ""}) {
    fs::permissions(snapshot.path + name, read_only);
  }
  const absl::Status status = BeginFrom({&snapshot}, "name: \"new\"", run, to);
  for (const char* name : {"", "/rank"}) {
    fs::permissions(snapshot.path + name, fs::perms::owner_all);
  }
  ASSERT_TRUE(status.ok()) << status;
  const std::string made = to + "/checkpoints/step-00000002";
  for (const std::string& path : {made, made + "/rank"}) {
    EXPECT_NE(fs::status(path).permissions() & fs::perms::owner_write,
              fs::perms::none)
        << path;
  }
  EXPECT_EQ(*ReadWholeFile(made + "/rank/state"), "whole");
}

TEST(RunWithoutTest, BeginsWithWhatLedToTheSnapshot) {
  const std::string run = NewFolder();
  const std::string parent = NewFolder();
  const std::string to = parent + "/new";
  // Of one that was killed.
  std::filesystem::create_directories(parent + "/.new.begun/checkpoints/old");
  std::ofstream(run + "/metrics.jsonl")
      << "{\"step\": 1, \"step_seconds\": 4}\n"
      << "{\"step\": 2, \"step_seconds\": 1}\n{\"step\": 2, \"eval_loss\": 1}\n"
      << "{\"step\": 3, \"step_seconds\": 2}\n";
  // It went on from step 2 once more.
  std::ofstream(run + "/receipts.jsonl")
      << "{\"begin\": 0}\n{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n"
      << "{\"begin\": 2}\n{\"step\": 3}\n";
  RunSnapshot snapshot = At(2, 16);
  snapshot.path = run + "/checkpoints/step-00000002";
  std::filesystem::create_directories(snapshot.path);
  std::ofstream(snapshot.path + "/manifest.json") << "whole";
  EXPECT_EQ(SecondsOfAStep(run), 2.0);
  RunSnapshot best = At(1, 8);
  best.path = run + "/checkpoints/step-00000001";
  std::filesystem::create_directories(best.path);
  std::filesystem::create_directories(to);  // an empty one may be there
  ASSERT_TRUE(BeginFrom({&best, &snapshot}, "name: \"new\"", run, to).ok());
  EXPECT_EQ(*ReadWholeFile(to + "/checkpoints/step-00000002/manifest.json"),
            "whole");
  EXPECT_TRUE(IsFolder(to + "/checkpoints/step-00000001"));
  EXPECT_FALSE(PathExists(to + "/checkpoints/old"));
  EXPECT_FALSE(PathExists(parent + "/.new.begun"));
  EXPECT_EQ(*ReadWholeFile(to + "/config.pbtxt"), "name: \"new\"");
  // The run that goes on cuts it.
  EXPECT_EQ(*ReadWholeFile(to + "/metrics.jsonl"),
            *ReadWholeFile(run + "/metrics.jsonl"));
  EXPECT_EQ(*ReadWholeFile(to + "/receipts.jsonl"),
            "{\"begin\": 0}\n{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n"
            "{\"begin\": 2}\n");
  // Not over what is there, and nothing is left beside it.
  EXPECT_FALSE(BeginFrom({&snapshot}, "name: \"other\"", run, to).ok());
  EXPECT_FALSE(PathExists(parent + "/.new.begun"));
  EXPECT_EQ(*ReadWholeFile(to + "/config.pbtxt"), "name: \"new\"");
}

}  // namespace
}  // namespace capstan
