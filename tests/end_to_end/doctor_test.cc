// SPDX-License-Identifier: Apache-2.0
//
// doctor and gpus as a user runs them, on machines with and without faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/free_port_for_test.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

namespace fs = std::filesystem;

// A machine with so many GPUs of a driver that is told by variables.
TrainerOptions WithGpus(const std::string& settings) {
  const std::string root = NewTestFolder("machine");
  for (const char* folder : {"/dev", "/usr/lib", "/proc", "/sys"}) {
    fs::create_directories(root + folder);
  }
  WriteText(root + "/dev/nvidiactl", "");
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    fs::copy_file(Runfile("base/libfake_driver.so"),
                  absl::StrCat(root, "/usr/lib/", name));
  }
  TrainerOptions options;
  options.environment["CAPSTAN_MACHINE_ROOT"] = root;
  options.environment["CAPSTAN_FAKE_DRIVER"] = settings;
  return options;
}

// Lines as they were before they were wrapped.
std::string Unwrapped(const TrainerResult& result) {
  return absl::StrReplaceAll(result.out, {{"\n" + std::string(20, ' '), " "}});
}

// Of a machine that is busy with other tests, speeds may be anything.
TEST(DoctorTest, TwoRanksOfThisMachine) {
  const TrainerResult result = RunTrainer({"doctor", "--json"});
  const Json report = Json::parse(result.out);
  ASSERT_EQ(report["hosts"].size(), 1) << result.out;
  std::vector<std::string> checks;
  for (const Json& finding : report["hosts"][0]["findings"]) {
    EXPECT_NE(finding["level"], "failure") << finding;
    checks.push_back(finding["check"]);
  }
  EXPECT_THAT(checks,
              testing::ElementsAre("cpu", "memory", "huge pages", "/dev/shm",
                                   "limits", "clock", "disk", "gpus"));
  ASSERT_GE(report["all_reduce"].size(), 4);
  for (const Json& size : report["all_reduce"]) {
    EXPECT_EQ(size["wrong"], 0);
    EXPECT_GT(size["bus_bytes_per_second"], 0);
  }
  EXPECT_THAT(report["findings"][1]["text"].get<std::string>(),
              StartsWith("2 ranks on 1 host, shm: right at"));
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_TRUE(result.all_gone);
}

TEST(DoctorTest, AConfigsDataAndFolder) {
  const RunText run =
      RunText().Ddp(2).Batch(2, 8).Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"doctor", "--config=" + run.File()});
  EXPECT_THAT(Unwrapped(result),
              AllOf(HasSubstr(fs::path(run.output()).parent_path().string()),
                    HasSubstr(" data       a rank reads "),
                    HasSubstr(" samples/s, and its steps need "),
                    HasSubstr("all-reduce       time   bus GB/s\n")));
  EXPECT_FALSE(fs::exists(run.output()));
}

TEST(DoctorTest, FaultsAreFailures) {
  TrainerOptions options;
  options.limits[RLIMIT_NOFILE] = 200;
  // Where nobody can make a file.
  const std::string config = RunText().Ddp(2).Output("/proc/out").File();
  const TrainerResult result =
      RunTrainer({"doctor", "--config=" + config}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(Unwrapped(result),
              AllOf(HasSubstr("failure  limits     200 open files"),
                    HasSubstr("ulimit -n 65536"),
                    HasSubstr("failure  disk       /proc can't be written"),
                    HasSubstr("ok       all-reduce 2 ranks")));
}

TEST(DoctorTest, AConfigThatCannotRunIsOneOfThem) {
  const std::string config =
      WriteText(NewTestFolder("wrong") + "/run.pbtxt", "train { max_step: 7 }");
  const TrainerResult result = RunTrainer({"doctor", "--config=" + config});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("failure  config     "),
                                HasSubstr("[config/unknown-field]\n"),
                                HasSubstr("ok       all-reduce 2 ranks")));
}

TEST(DoctorTest, SettingsNeedAConfig) {
  ExpectOneError(RunTrainer({"doctor", "--set", "launch.nodes=2"}),
                 {"--set launch.nodes=2", "add --config"});
}

TEST(DoctorTest, TwoHosts) {
  const std::string config = RunText()
                                 .Ddp(2)
                                 .Batch(2, 8)
                                 .Output(NewTestFolder("hosts") + "/out")
                                 .File();
  const std::string meet =
      absl::StrCat("launch.rendezvous=127.0.0.1:", FreePort());
  const auto words = [&](int host) -> std::vector<std::string> {
    return {"doctor", "--config=" + config,
            "--set",  "launch.nodes=2",
            "--set",  absl::StrCat("launch.node_rank=", host),
            "--set",  meet};
  };
  TrainerOptions first;
  first.environment["CAPSTAN_HOST_ID"] = "first";
  TrainerOptions second;
  second.environment["CAPSTAN_HOST_ID"] = "second";
  second.limits[RLIMIT_NOFILE] = 200;
  TrainerProcess other(words(1), second);
  const TrainerResult result = RunTrainer(words(0), first);
  const TrainerResult quiet = other.Wait();
  // The first tells what the second has found.
  EXPECT_THAT(result.out, AllOf(HasSubstr("failure  limits     200 open files"),
                                HasSubstr("4 ranks on 2 hosts"),
                                HasSubstr("clocks     hosts' clocks within")));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(quiet.out, "");
  EXPECT_EQ(quiet.exit_code, 1) << quiet.err;
}

TEST(GpusCommandTest, WithoutOne) {
  const TrainerResult result = RunTrainer({"gpus"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              AllOf(StartsWith("no NVIDIA GPU here"), HasSubstr("nvidia-smi")));
  EXPECT_EQ(RunTrainer({"gpus", "--json"}).out, "[]\n");
}

TEST(GpusCommandTest, Two) {
  const TrainerResult result =
      RunTrainer({"gpus"}, WithGpus("gpus=2,nvlinks=17,process=1"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("  0 NVIDIA Fake 0           80.0 GiB  79.0 GiB  12%  41 "
                      "C 72/700W    NVL 18/18\n"),
            HasSubstr("NVL 17/18\n    process 1 ("),
            HasSubstr(") 30.0 GiB\n")));
  EXPECT_THAT(
      Unwrapped(RunTrainer({"doctor"}, WithGpus("gpus=2,ecc=4,slowed=64"))),
      AllOf(HasSubstr("ok       gpu 0      NVIDIA Fake 0\n"),
            HasSubstr("failure  gpu 1      NVIDIA Fake 1: 4 unc"),
            HasSubstr("slowed down to 345 of 1980 MHz by HW")));
}

TEST(GpusCommandTest, WatchesUntilItIsStopped) {
  TrainerOptions options = WithGpus("gpus=1");
  TrainerProcess watch({"gpus", "--watch", "--json"}, options);
  EXPECT_TRUE(watch.WaitUntil([&watch] {
    const std::string out = watch.Out();
    return std::count(out.begin(), out.end(), '\n') >= 2;
  }));
  watch.Signal(SIGINT);
  const TrainerResult result = watch.Wait();
  EXPECT_EQ(result.term_signal, SIGINT);
  EXPECT_THAT(result.out, StartsWith("[{\"index\":0,"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  // What can't be shown ends it, too.
  std::string full;
  for (const auto& [name, value] : options.environment) {
    absl::StrAppend(&full, name, "=", value, " ");
  }
  absl::StrAppend(&full, "timeout 60 ", Runfile("trainer/trainer"),
                  " gpus --watch > /dev/full");
  EXPECT_EQ(WEXITSTATUS(std::system(full.c_str())), 1);
}

}  // namespace
}  // namespace capstan
