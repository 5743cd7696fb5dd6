// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/clock.h"

namespace capstan {
namespace {

class MachineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/machine_XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  int64_t Available() {
    return AvailableHostMemory(root_ + "/proc", root_ + "/sys");
  }
  int Quota() { return CoresByQuota(root_ + "/proc", root_ + "/sys"); }

  std::string root_;
};

TEST_F(MachineTest, NoQuota) {
  EXPECT_EQ(Quota(), 0);
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(Quota(), 0);
}

TEST_F(MachineTest, TheSmallestQuotaOnTheWayUpHolds) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
  EXPECT_EQ(Quota(), 8);
  Write("sys/fs/cgroup/a/cpu.max", "350000 100000\n");
  EXPECT_EQ(Quota(), 4);
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(Quota(), 1);
}

TEST_F(MachineTest, VersionOne) {
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), 2);
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(Quota(), 0);
}

TEST_F(MachineTest, WhatTheMachineHas) {
  EXPECT_EQ(Available(), std::numeric_limits<int64_t>::max());
  Write("proc/meminfo",
        "MemTotal:       16 kB\nMemAvailable:       12 kB\nBuffers: 3 kB\n");
  EXPECT_EQ(Available(), 12 * 1024);
}

TEST_F(MachineTest, AllMemoryThatAProcessMayUse) {
  const auto memory = [this] {
    return HostMemory(root_ + "/proc", root_ + "/sys");
  };
  EXPECT_EQ(memory(), std::numeric_limits<int64_t>::max());
  Write("proc/meminfo",
        "MemTotal: 100 kB\nMemAvailable: 12 kB\nSwapTotal: 8 kB\n");
  EXPECT_EQ(memory(), 108 * 1024);
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/a/memory.max", "max\n");
  EXPECT_EQ(memory(), 108 * 1024);
  Write("sys/fs/cgroup/memory.max", "20480\n");
  EXPECT_EQ(memory(), 28 * 1024);
}

TEST_F(MachineTest, GroupsOfVersion2) {
  Write("proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "0::/outer/inner\n");
  const std::string outer = "sys/fs/cgroup/outer";
  Write(outer + "/inner/memory.max", "max\n");
  Write(outer + "/inner/memory.current", "10000\n");
  EXPECT_EQ(Available(), 1000 * 1024);
  Write(outer + "/memory.max", "50000\n");
  Write(outer + "/memory.current", "30000\n");
  EXPECT_EQ(Available(), 20000);
  // The page cache doesn't count.
  Write(outer + "/memory.stat", "anon 25000\nfile 5000\ninactive_file 4000\n");
  EXPECT_EQ(Available(), 24000);
  Write(outer + "/inner/memory.max", "12000\n");
  EXPECT_EQ(Available(), 2000);
}

TEST_F(MachineTest, InAContainerTheRootIsItsGroup) {
  Write("proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "0::/docker/abc\n");
  Write("sys/fs/cgroup/memory.max", "8000\n");
  Write("sys/fs/cgroup/memory.current", "9000\n");
  EXPECT_EQ(Available(), 0);
}

TEST_F(MachineTest, GroupsOfVersion1) {
  Write("proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "5:cpu:/x\n7:memory:/box\n");
  Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "70000\n");
  Write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "30000\n");
  Write("sys/fs/cgroup/memory/box/memory.stat",
        "inactive_file 1\ntotal_inactive_file 5000\n");
  EXPECT_EQ(Available(), 45000);
}

void CodeOfTheTest() {}

TEST(AvailableCores, AtLeastOne) { EXPECT_GE(AvailableCores(), 1); }

TEST(MachineFacts, ThisProcessHoldsMemory) {
  const ProcessMemory memory = ReadProcessMemory();
  EXPECT_GT(memory.resident, 0);
  EXPECT_GE(memory.peak, memory.resident);
  EXPECT_GT(memory.anonymous, 0);
  EXPECT_GT(AvailableHostMemory(), 0);
}

TEST(MachineFacts, WhereProgramsAndLibrariesLie) {
  const std::filesystem::path program =
      std::filesystem::canonical("/proc/self/exe");
  EXPECT_EQ(ExecutableFolder(), program.parent_path().string());
  // Code of the test itself, and of the C library.
  EXPECT_EQ(LibraryFolder(reinterpret_cast<const void*>(&CodeOfTheTest)),
            ExecutableFolder());
  EXPECT_NE(LibraryFolder(reinterpret_cast<const void*>(&::realpath)),
            ExecutableFolder());
  EXPECT_EQ(LibraryFolder(nullptr), "");
  EXPECT_EQ(RealFolderOf("/no/such"), "");
  const std::string folder = testing::TempDir() + "/real_XXXXXX";
  std::string made = folder;
  ASSERT_NE(mkdtemp(made.data()), nullptr);
  std::ofstream(made + "/file") << "x";
  std::filesystem::create_directory(made + "/other");
  std::filesystem::create_symlink(made + "/file", made + "/other/link");
  EXPECT_EQ(RealFolderOf((made + "/other/link").c_str()),
            std::filesystem::canonical(made).string());
}

TEST(ClockTest, SecondsAndNanosecondsAreOneClock) {
  const double before = MonotonicSeconds();
  const int64_t nanoseconds = MonotonicNanoseconds();
  const double after = MonotonicSeconds();
  EXPECT_GE(1e-9 * static_cast<double>(nanoseconds), before - 1e-3);
  EXPECT_LE(1e-9 * static_cast<double>(nanoseconds), after + 1e-3);
}

}  // namespace
}  // namespace capstan
