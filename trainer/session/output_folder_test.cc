// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "host/config/load_config.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Folder() {
  const std::string folder =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(OutputFolderTest, EachRunGetsItsOwnAndLatestPointsToIt) {
  const std::string workspace = Folder();
  RunConfig config;
  config.set_name("demo");
  const auto first = PrepareOutputFolder(config, workspace);
  const auto second = PrepareOutputFolder(config, workspace);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(first->path, second->path);
  EXPECT_TRUE(fs::is_directory(first->path));
  EXPECT_EQ(fs::canonical(FollowLatestRun(workspace + "/runs/demo/latest")),
            fs::canonical(second->path));
}

TEST(OutputFolderTest, AUsedFolderIsRefusedAndLeftAlone) {
  const std::string folder = Folder();
  std::ofstream(folder + "/metrics.jsonl") << "{}\n";
  RunConfig config;
  config.set_output_dir(folder);
  const auto refused = PrepareOutputFolder(config, "");
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("already holds a run"));
  EXPECT_EQ(fs::file_size(folder + "/metrics.jsonl"), 3);
  config.mutable_train()->set_resume(Train::AUTO);
  EXPECT_EQ(PrepareOutputFolder(config, "").value().path, folder);
}

TEST(OutputFolderTest, ResumeWithoutOutputDirTakesUpTheLatestRun) {
  const std::string workspace = Folder();
  RunConfig config;
  config.set_name("demo");
  config.mutable_train()->set_resume(Train::AUTO);
  const std::string first = PrepareOutputFolder(config, workspace).value().path;
  // Nothing to resume yet: creates a new one.
  const std::string second =
      PrepareOutputFolder(config, workspace).value().path;
  EXPECT_NE(first, second);
  fs::create_directories(second + "/checkpoints/step-00000005");
  std::ofstream(second + "/checkpoints/step-00000005/manifest.json") << "{}";
  fs::remove(second + "/.lock");  // that run has ended
  EXPECT_EQ(fs::canonical(PrepareOutputFolder(config, workspace).value().path),
            fs::canonical(second));
  fs::create_directories(second + "/final");
  EXPECT_NE(PrepareOutputFolder(config, workspace).value().path, second);
}

// As seen by another process: flock is per open file.
TEST(OutputFolderTest, AFolderInUseIsRefused) {
  RunConfig config;
  config.set_output_dir(Folder() + "/run");
  ASSERT_TRUE(PrepareOutputFolder(config, "", "SLURM: job 7").ok());
  const std::string refused(PrepareOutputFolder(config, "").status().message());
  EXPECT_THAT(refused,
              AllOf(HasSubstr("is in use by a run that is still going (host "),
                    HasSubstr(absl::StrCat(", process ", getpid(), ", since ")),
                    HasSubstr(", SLURM: job 7): wait for it, stop it, or name "
                              "another folder")));
}

// Has that call fail with `error` in this process from now on.
bool Forbid(unsigned call, int error) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What `body` returns, in a process of its own.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

// A file system without flock isn't "in use", and two runs are told apart all
// the same.
TEST(OutputFolderTest, WithoutFlockAnotherLockIsTaken) {
  RunConfig config;
  config.set_output_dir(Folder() + "/run");
  const int code = InChild([&config] {
    if (!Forbid(__NR_flock, ENOLCK)) return 77;
    if (!PrepareOutputFolder(config, "").ok()) return 1;
    const absl::Status second = PrepareOutputFolder(config, "").status();
    return absl::StrContains(second.message(), "is in use by a run") ? 0 : 2;
  });
  if (code == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0);
  // It died with its holder.
  EXPECT_TRUE(PrepareOutputFolder(config, "").ok());
}

// A loss of power could take what a run has saved there (tests/sim, seed
// 17390).
TEST(OutputFolderTest, AFolderThatCannotBeFlushedIsRefused) {
  RunConfig config;
  config.set_output_dir(Folder() + "/run");
  const int code = InChild([&config] {
    if (!Forbid(__NR_fsync, EIO)) return 77;
    const absl::Status status = PrepareOutputFolder(config, "").status();
    return absl::StrContains(status.message(),
                             "/run can't be flushed to its disk")
               ? 0
               : 1;
  });
  if (code == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0);
}

// Its locks go with the last process that has them, whoever wrote them.
TEST(OutputFolderTest, TheFolderOfAKilledRunIsFree) {
  RunConfig config;
  config.set_output_dir(Folder() + "/run");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t run = fork();
  if (run == 0) {
    const bool locked = PrepareOutputFolder(config, "").ok();
    // As a rank, which inherits the lock.
    const pid_t rank = locked ? fork() : -1;
    if (rank == 0) {
      while (true) pause();
    }
    if (write(ready[1], &rank, sizeof(rank)) < 0) _exit(1);
    while (true) pause();
  }
  pid_t rank = -1;
  ASSERT_EQ(read(ready[0], &rank, sizeof(rank)),
            static_cast<ssize_t>(sizeof(rank)));
  ASSERT_GT(rank, 0);
  kill(run, SIGKILL);
  waitpid(run, nullptr, 0);
  EXPECT_THAT(std::string(PrepareOutputFolder(config, "").status().message()),
              HasSubstr(absl::StrCat("process ", run)));
  kill(rank, SIGKILL);
  EXPECT_TRUE(PrepareOutputFolder(config, "").ok());
  close(ready[0]);
  close(ready[1]);
}

// As a file server does with the lock of a host that is lost: it goes after a
// while.
TEST(OutputFolderTest, ARestartWaitsForALockThatOutlivesItsHost) {
  RunConfig config;
  config.set_output_dir(Folder() + "/run");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    if (!PrepareOutputFolder(config, "").ok()) _exit(1);
    if (write(ready[1], "x", 1) < 0) _exit(1);
    sleep(4);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  testing::internal::CaptureStderr();
  const absl::Status taken =
      PrepareOutputFolder(config, "", "", kLostHostPatience).status();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_THAT(said, AllOf(HasSubstr("is still locked (host "),
                          HasSubstr(absl::StrCat("process ", holder)),
                          HasSubstr("waits up to 150 s")));
  int status = 0;
  ASSERT_EQ(waitpid(holder, &status, 0), holder);
  EXPECT_EQ(status, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(OutputFolderTest, AFileInTheWayIsAnError) {
  const std::string folder = Folder();
  std::ofstream(folder + "/file") << "x";
  RunConfig config;
  config.set_output_dir(folder + "/file");
  EXPECT_THAT(std::string(PrepareOutputFolder(config, "").status().message()),
              HasSubstr("is not a folder"));
  config.set_output_dir(folder + "/file/below");
  EXPECT_FALSE(PrepareOutputFolder(config, "").ok());
}

TEST(OutputFolderTest, ANameThatIsTooLongIsAnError) {
  RunConfig config;
  config.set_output_dir(Folder() + "/" + std::string(300, 'x'));
  for (const Train::Resume resume : {Train::NEVER, Train::AUTO}) {
    config.mutable_train()->set_resume(resume);
    EXPECT_EQ(CheckpointToResume(config, ""), "");
    const absl::Status status = PrepareOutputFolder(config, "").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("File name too long): name another"));
  }
}

}  // namespace
}  // namespace capstan
