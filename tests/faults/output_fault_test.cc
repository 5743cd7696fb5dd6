// SPDX-License-Identifier: Apache-2.0
//
// Output folders that are used, full or not to be had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// At once; on a busy machine, too.
constexpr double kSeconds = 30.0;

TEST(UsedFolderTest, IsRefusedWithoutResume) {
  const std::string folder = MustTrain(RunText());
  const auto before = Snapshot(folder);
  const RunText run = RunText().Ddp(2).Batch(2, 8).Output(folder);
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"output_dir", folder, "already holds a run", "resume: AUTO"});
  EXPECT_EQ(Snapshot(folder), before);
}

TEST(UsedFolderTest, FilesOfSomeoneElseStay) {
  const std::string folder = NewTestFolder("run");
  WriteText(folder + "/notes.txt", "keep me");
  MustTrain(RunText().Output(folder));
  EXPECT_EQ(ReadText(folder + "/notes.txt"), "keep me");
}

TEST(UsedFolderTest, AFileInItsPlace) {
  const std::string file = WriteText(NewTestFolder("run") + "/out", "a file");
  for (const std::string& folder : {file, file + "/below"}) {
    const RunText run = RunText().Output(folder);
    ExpectOneError(RunTrainer({"--config=" + run.File()}),
                   {"output_dir", folder});
  }
  EXPECT_EQ(ReadText(file), "a file");
}

// 171,456 parameters: a checkpoint takes 2.06 MB, final 0.69 MB.
RunText BigRun() {
  return RunText::Golden().Ddp(2).Batch(4, 8).Train(
      "max_steps: 4 save_every: 2 keep_checkpoints: 1");
}

// The checkpoint is whole: a run goes on from a copy of it elsewhere, as it
// would have without the fault.
void ExpectResumes(const std::string& folder) {
  const std::string copy = NewTestFolder("copy");
  fs::copy(folder, copy, fs::copy_options::recursive);
  MustTrain(BigRun().Train("resume: AUTO").Output(copy));
  EXPECT_EQ(ReadMetrics(copy).losses(),
            ReadMetrics(MustTrain(BigRun())).losses());
}

TEST(NoSpaceTest, FilesThatMayNotGrow) {
  const std::string folder = NewTestFolder("run") + "/out";
  MustTrain(BigRun().Train("max_steps: 2").Output(folder));
  const std::string checkpoint = folder + "/checkpoints/step-00000002";
  const auto before = Snapshot(checkpoint);
  const auto final_before = Snapshot(folder + "/final");
  TrainerOptions options;
  options.limits[RLIMIT_FSIZE] = 300000;
  const RunText run = BigRun().Train("resume: AUTO").Output(folder);
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  ExpectOneError(result, {"step-00000004", "state-0000", "File too large"});
  EXPECT_LT(result.seconds, kSeconds);
  EXPECT_EQ(Snapshot(checkpoint), before);
  EXPECT_EQ(Snapshot(folder + "/final"), final_before);
  EXPECT_THAT(CheckpointSteps(folder), ElementsAre(2));
  ExpectResumes(folder);
}

// A file system of a few megabytes, in a mount namespace of the test's own.
class FullDiskTest : public ::testing::Test {
 protected:
  void Mount(const std::string& size) {
    folder_ = NewTestFolder("disk");
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("capstan_test", folder_.c_str(), "tmpfs", 0,
              ("size=" + size).c_str()) != 0) {
      GTEST_SKIP() << "may not mount here; see FilesThatMayNotGrow";
    }
    mounted_ = true;
  }
  ~FullDiskTest() override {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }

  std::string folder_;
  bool mounted_ = false;
};

TEST_F(FullDiskTest, ACheckpointThatDoesNotFit) {
  ASSERT_NO_FATAL_FAILURE(Mount("3400k"));
  if (IsSkipped()) return;
  const std::string out = folder_ + "/out";
  const RunText run = BigRun().Output(out);
  TrainerResult result = RunTrainer({"--config=" + run.File()});
  // A warning first, since what a file system says of its room may be wrong.
  const size_t warning = result.err.find("and a checkpoint needs");
  ASSERT_NE(warning, std::string::npos) << result.err;
  result.err.erase(0, result.err.find('\n', warning) + 1);
  ExpectOneError(result, {"step-00000004", "o space left on device"});
  EXPECT_LT(result.seconds, kSeconds);
  EXPECT_THAT(CheckpointSteps(out), ElementsAre(2));
  EXPECT_EQ(ReadMetrics(out).steps.size(), 4);
  ExpectResumes(out);
}

TEST_F(FullDiskTest, FinalThatDoesNotFit) {
  ASSERT_NO_FATAL_FAILURE(Mount("2500k"));
  if (IsSkipped()) return;
  const std::string out = folder_ + "/out";
  const RunText run = BigRun().Train("max_steps: 2").Output(out);
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, {"final", "o space left on device"});
  EXPECT_THAT(CheckpointSteps(out), ElementsAre(2));
  EXPECT_FALSE(fs::exists(out + "/final"));
  ExpectResumes(out);
}

TEST_F(FullDiskTest, NoRoomAtAll) {
  ASSERT_NO_FATAL_FAILURE(Mount("64k"));
  if (IsSkipped()) return;
  fs::create_directory(folder_ + "/out");
  const std::string filler = folder_ + "/filler";
  FILE* file = fopen(filler.c_str(), "w");
  ASSERT_NE(file, nullptr);
  setvbuf(file, nullptr, _IONBF, 0);
  const std::string block(4096, 'x');
  while (fwrite(block.data(), 1, block.size(), file) == block.size()) {
  }
  fclose(file);
  const RunText run = BigRun().Output(folder_ + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, {folder_ + "/out/", "o space left on device"});
  EXPECT_LT(result.seconds, kSeconds);
}

// A run of many steps stops with the cause, not at its end only.
TEST_F(FullDiskTest, MetricsThatDoNotFit) {
  ASSERT_NO_FATAL_FAILURE(Mount("256k"));
  if (IsSkipped()) return;
  const RunText run =
      RunText().Train("max_steps: 1000000").Output(folder_ + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, {folder_ + "/out/", "o space left on device"});
  EXPECT_LT(result.seconds, 100.0);
}

}  // namespace
}  // namespace capstan
