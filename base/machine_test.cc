// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

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

TEST_F(MachineTest, CountsGpus) {
  const std::string folder = root_ + "/gpus";
  EXPECT_EQ(CountGpusIn(folder, nullptr), 0);
  for (const char* gpu : {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}) {
    Write(std::string("gpus/") + gpu + "/information", "");
  }
  EXPECT_EQ(CountGpusIn(folder, nullptr), 3);
  EXPECT_EQ(CountGpusIn(folder, ""), 0);
  EXPECT_EQ(CountGpusIn(folder, "-1"), 0);
  EXPECT_EQ(CountGpusIn(folder, "2"), 1);
  EXPECT_EQ(CountGpusIn(folder, "0, 1"), 2);
  EXPECT_EQ(CountGpusIn(folder, "0,7,1"), 1);
  EXPECT_EQ(CountGpusIn(folder, "GPU-8932f937,GPU-1"), 2);
  EXPECT_EQ(CountGpusIn(folder, "0,1,2,0"), 3);
}

TEST(AvailableCores, AtLeastOne) { EXPECT_GE(AvailableCores(), 1); }

}  // namespace
}  // namespace capstan
