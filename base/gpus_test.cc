// SPDX-License-Identifier: Apache-2.0
//
// Machines by their /proc, /dev and driver: fake ones below a folder.
#include "base/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

constexpr char kSettings[] = "CAPSTAN_FAKE_DRIVER";
constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

class GpusTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/gpus_XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    probe_.root = path;
    unsetenv(kSettings);
    unsetenv(kVisible);
  }
  void TearDown() override { fs::remove_all(probe_.root); }

  void Write(const std::string& path, const std::string& text = "") {
    const fs::path full = probe_.root + "/" + path;
    fs::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }

  // The driver's libraries, where the loader or (WSL2) only we look.
  void InstallDriver(const std::string& folder = "usr/lib") {
    const char* const runfiles = getenv("TEST_SRCDIR");
    ASSERT_NE(runfiles, nullptr);
    const std::string library =
        absl::StrCat(runfiles, "/capstan/base/libfake_driver.so");
    const std::string to = absl::StrCat(probe_.root, "/", folder);
    fs::create_directories(to);
    for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
      fs::copy_file(library, absl::StrCat(to, "/", name));
    }
  }

  // A usual machine with so many cards.
  void HasCards(int cards) {
    for (int i = 0; i < cards; ++i) {
      Write(absl::StrCat("proc/driver/nvidia/gpus/0000:0", i + 1,
                         ":00.0/information"));
      Write(absl::StrCat("dev/nvidia", i));
    }
    Write("dev/nvidiactl");
    Write("proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  "
          "Release Build\n");
    setenv(kSettings, absl::StrCat("gpus=", cards).c_str(), 1);
  }

  void Fake(const std::string& settings) {
    setenv(kSettings, settings.c_str(), 1);
  }

  GpuReport Ask() { return AskDriver(probe_); }

  std::vector<std::string> Names() {
    const GpuReport report = Ask();
    EXPECT_TRUE(report.status.ok()) << report.status;
    std::vector<std::string> names;
    for (const Gpu& gpu : report.gpus) names.push_back(gpu.name);
    return names;
  }

  std::string Problem() {
    const GpuReport report = Ask();
    EXPECT_TRUE(report.gpus.empty());
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("CUDA_VISIBLE_DEVICES= to train on the CPU"));
    return std::string(report.status.message());
  }

  GpuProbe probe_;
};

TEST_F(GpusTest, NoDriverIsNoQuestion) {
  InstallDriver();
  const std::string touched = probe_.root + "/touched";
  Fake("touched=" + touched);
  const GpuReport report = Ask();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_EQ(report.note, "");
  EXPECT_FALSE(fs::exists(touched));
  // The check itself sees who calls.
  Write("dev/nvidiactl");
  EXPECT_EQ(Ask().gpus.size(), 1u);
  EXPECT_TRUE(fs::exists(touched));
}

TEST_F(GpusTest, WhatTheDriverKnows) {
  HasCards(2);
  InstallDriver();
  const GpuReport report = Ask();
  ASSERT_EQ(report.gpus.size(), 2u) << report.status;
  EXPECT_EQ(report.on_machine, 2);
  EXPECT_EQ(report.cuda_version, 13000);
  EXPECT_EQ(report.driver_version, "580.65.06");
  EXPECT_EQ(report.note, "");
  const Gpu& gpu = report.gpus[1];
  EXPECT_EQ(gpu.name, "NVIDIA Fake 1");
  EXPECT_EQ(gpu.uuid, "GPU-a1000000-0000-0000-0000-000000000001");
  EXPECT_EQ(gpu.bus_id, "0000:02:00.0");
  EXPECT_EQ(gpu.compute_capability, 90);
  EXPECT_EQ(gpu.memory, int64_t{80} << 30);
  EXPECT_EQ(gpu.free_memory, int64_t{78} << 30);
  EXPECT_TRUE(gpu.maps_memory);
}

// The user's own settings win, and a GPU that can't map has LibTorch's.
TEST_F(GpusTest, SegmentsGrowWhereMemoryIsMapped) {
  HasCards(2);
  InstallDriver();
  std::vector<Gpu> gpus = Ask().gpus;
  EXPECT_EQ(GpuAllocatorSettings(gpus), "expandable_segments:True");
  EXPECT_EQ(GpuAllocatorSettings({}), "");
  for (const char* own : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    setenv(own, "max_split_size_mb:512", 1);
    EXPECT_EQ(GpuAllocatorSettings(gpus), "");
    unsetenv(own);
  }
  gpus[1].maps_memory = false;
  EXPECT_EQ(GpuAllocatorSettings(gpus), "");
}

TEST_F(GpusTest, VisibleByIndexUuidAndMigName) {
  HasCards(3);
  InstallDriver();
  setenv(kVisible, "2,0", 1);
  EXPECT_THAT(Names(), ElementsAre("NVIDIA Fake 2", "NVIDIA Fake 0"));
  setenv(kVisible, "GPU-a1", 1);
  EXPECT_THAT(Names(), ElementsAre("NVIDIA Fake 1"));
  Fake("gpus=3,mig");
  setenv(kVisible, "MIG-a2000000-0000-0000-0000-000000000002", 1);
  const GpuReport report = Ask();
  ASSERT_EQ(report.gpus.size(), 1u) << report.status;
  EXPECT_EQ(report.gpus[0].uuid, "MIG-a2000000-0000-0000-0000-000000000002");
  EXPECT_EQ(report.gpus[0].free_memory, int64_t{77} << 30);
}

TEST_F(GpusTest, OnlyThoseBeforeOneThatIsNotThere) {
  HasCards(2);
  InstallDriver();
  setenv(kVisible, "0,7,1", 1);
  EXPECT_THAT(Names(), ElementsAre("NVIDIA Fake 0"));
  EXPECT_THAT(Ask().note, HasSubstr("is \"0,7,1\", of which CUDA shows 1"));
  setenv(kVisible, "7", 1);
  EXPECT_THAT(Problem(), HasSubstr("CUDA_VISIBLE_DEVICES is \"7\", which names "
                                   "no GPU that this process may use"));
  setenv(kVisible, "0,0", 1);
  EXPECT_THAT(Problem(), HasSubstr("is \"0,0\", with 0 twice, for which CUDA "
                                   "shows no GPU: name each once"));
}

TEST_F(GpusTest, NoneByChoiceAsksNobody) {
  HasCards(2);
  InstallDriver();
  const std::string touched = probe_.root + "/touched";
  Fake("gpus=2,crash=cuInit,touched=" + touched);
  for (const char* visible : {"", "-1", " -1,0", "NoDevFiles"}) {
    setenv(kVisible, visible, 1);
    EXPECT_THAT(Names(), IsEmpty()) << visible;
  }
  EXPECT_FALSE(fs::exists(touched));
}

TEST_F(GpusTest, Wsl) {
  // Windows shows its GPUs as one device, and keeps the driver elsewhere.
  Write("dev/dxg");
  EXPECT_THAT(Names(), IsEmpty());  // not one of NVIDIA's
  InstallDriver("usr/lib/wsl/lib");
  EXPECT_THAT(Names(), ElementsAre("NVIDIA Fake 0"));
}

TEST_F(GpusTest, AContainerByCdiHasNoProc) {
  Write("dev/nvidiactl");
  Write("dev/nvidia3");
  InstallDriver();
  EXPECT_THAT(Names(), ElementsAre("NVIDIA Fake 0"));
  EXPECT_EQ(Ask().on_machine, 0);
}

// The kernel's module shows in every container; its devices don't.
TEST_F(GpusTest, AContainerThatWasGivenNone) {
  HasCards(2);
  fs::remove_all(probe_.root + "/dev");
  const GpuReport report = Ask();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_THAT(report.note, HasSubstr("has 2 NVIDIA GPUs, but none is given"));
}

TEST_F(GpusTest, ADeviceWithoutTheDriversLibrary) {
  HasCards(1);
  EXPECT_THAT(Problem(),
              AllOf(HasSubstr("not the driver's library"),
                    HasSubstr("libcuda.so.1"), HasSubstr("--gpus=all")));
}

TEST_F(GpusTest, ADriverThatShowsNone) {
  HasCards(1);
  InstallDriver();
  Fake("init=100");
  EXPECT_THAT(Problem(), HasSubstr("CUDA shows none"));
  // A control group (Slurm's, without --gres) lets nobody open the device:
  // nothing is wrong.
  fs::remove(probe_.root + "/dev/nvidia0");
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(Ask().note, HasSubstr("none is given to this container or job"));
}

TEST_F(GpusTest, AnOldDriver) {
  HasCards(1);
  InstallDriver();
  Fake("cuda=12040,driver=550.54.14");
  EXPECT_THAT(Problem(),
              HasSubstr("the NVIDIA driver 550.54.14 is for CUDA up to 12.4, "
                        "but this program needs CUDA 13.0, hence driver 580 or "
                        "later: update the driver"));
  Fake("cuda=13010");
  EXPECT_EQ(Ask().gpus.size(), 1u);
}

TEST_F(GpusTest, ErrorsSayWhatToDo) {
  HasCards(1);
  InstallDriver();
  Fake("init=802");
  EXPECT_THAT(Problem(),
              AllOf(HasSubstr("cuInit failed with CUDA_ERROR_SYSTEM_NOT_READY "
                              "(802)"),
                    HasSubstr("nvidia-fabricmanager")));
  Fake("init=803");
  EXPECT_THAT(Problem(), HasSubstr("of different versions: restart"));
  Fake("init=34");
  EXPECT_THAT(Problem(), HasSubstr("`stubs` out of LD_LIBRARY_PATH"));
  Fake("init=999");
  EXPECT_THAT(Problem(), HasSubstr("CUDA_ERROR_UNKNOWN (999)"));
}

TEST_F(GpusTest, ADriverThatCrashes) {
  HasCards(1);
  InstallDriver();
  for (const char* where : {"nvmlInit", "cuInit", "cuDeviceGetCount"}) {
    Fake(absl::StrCat("crash=", where));
    EXPECT_THAT(Problem(),
                AllOf(HasSubstr("the NVIDIA driver crashed: signal 11"),
                      HasSubstr(absl::StrCat("(in ", where, ")"))));
  }
}

TEST_F(GpusTest, ADriverThatHangs) {
  HasCards(1);
  InstallDriver();
  Fake("hang=cuInit");
  probe_.limit_seconds = 0.3;
  const double start = MonotonicSeconds();
  EXPECT_THAT(Problem(),
              HasSubstr("the NVIDIA driver did not answer within 0.3 s (in "
                        "cuInit)"));
  EXPECT_LT(MonotonicSeconds() - start, 30.0);
  // The child is gone.
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST_F(GpusTest, WhoeverStartedUsMayIgnoreOurChildren) {
  HasCards(2);
  InstallDriver();
  signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(Names().size(), 2u);
  Fake("crash=cuInit");
  EXPECT_THAT(Problem(), HasSubstr("the NVIDIA driver ended its process"));
  signal(SIGCHLD, SIG_DFL);
}

// The parent may still fork ranks: it must not load the driver itself.
TEST_F(GpusTest, TheParentStaysClean) {
  HasCards(1);
  InstallDriver();
  ASSERT_EQ(Ask().gpus.size(), 1u);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find(probe_.root), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace capstan
