// SPDX-License-Identifier: Apache-2.0
//
// Limits of a process (ulimit): an error that names them, never a signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

TrainerResult RunLimited(RunText run, int what, uint64_t most) {
  TrainerOptions options;
  options.limits[what] = most;
  run.Output(NewTestFolder("run") + "/out");
  return RunTrainer({"--config=" + run.File()}, options);
}

TEST(LimitsTest, FilesOfTheLauncherToo) {
  // What its ranks share is a file of several MiB.
  ExpectOneError(
      RunLimited(RunText().Ddp(2), RLIMIT_FSIZE, 4096),
      {"File too large", "the limit of a file is 4096 bytes (ulimit -f)"});
  ExpectOneError(RunLimited(RunText(), RLIMIT_FSIZE, 100),
                 {"File too large", "100 bytes (ulimit -f)"});
  ExpectOneError(RunLimited(RunText(), RLIMIT_FSIZE, 32 << 10),
                 {".safetensors can't be written: File too large",
                  "32768 bytes (ulimit -f)"});
}

TEST(LimitsTest, AStackThatIsTooSmall) {
  ExpectOneError(RunLimited(RunText(), RLIMIT_STACK, 256 << 10),
                 {"the stack may take 262144 bytes (ulimit -s)"});
}

// Saves before the kernel ends it.
TEST(LimitsTest, CpuTimeThatRunsOut) {
  for (const int ranks : {1, 2}) {
    const RunText run = RunText().Ddp(ranks).Train("max_steps: 10000000");
    const TrainerResult result = RunLimited(run, RLIMIT_CPU, 4);
    EXPECT_EQ(result.exit_code, 128 + SIGXCPU) << result.err;
    EXPECT_THAT(result.err,
                HasSubstr("the 4 s of CPU time that a process may take (ulimit "
                          "-t) are nearly used up: stopped after step "));
    EXPECT_THAT(result.err, HasSubstr("go on with: "));
    EXPECT_TRUE(result.all_gone);
  }
}

// From what isn't enough for the libraries to what is for training.
TEST(LimitsTest, AddressSpaceThatIsTooSmall) {
  for (const uint64_t mib : {64, 256, 512, 768, 1024, 1536}) {
    const TrainerResult result =
        RunLimited(RunText().Ddp(2), RLIMIT_AS, mib << 20);
    if (result.exit_code == 0) continue;
    ExpectOneError(result, {absl::StrCat("address space is ", mib << 20,
                                         " bytes (ulimit -v)")});
  }
}

TEST(LimitsTest, ThreadsThatNoMachineRuns) {
  TrainerOptions options;
  options.environment["OMP_NUM_THREADS"] = "100000";
  ExpectOneError(RunTrainer({"--config=" + RunText().File()}, options),
                 {"OMP_NUM_THREADS is 100000", "cores: set at most "});
}

}  // namespace
}  // namespace capstan
