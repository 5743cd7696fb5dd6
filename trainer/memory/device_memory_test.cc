// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/device_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

class DeviceMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/machine_XXXXXX";
    ASSERT_NE(mkdtemp(&root_[0]), nullptr);
  }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int64_t Available() const {
    return AvailableHostMemory(root_ + "/proc", root_ + "/sys");
  }

  std::string root_;
};

TEST_F(DeviceMemoryTest, WhatTheMachineHas) {
  EXPECT_EQ(Available(), std::numeric_limits<int64_t>::max());
  Write("/proc/meminfo",
        "MemTotal:       16 kB\nMemAvailable:       12 kB\nBuffers: 3 kB\n");
  EXPECT_EQ(Available(), 12 * 1024);
}

TEST_F(DeviceMemoryTest, GroupsOfVersion2) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  const std::string outer = "/sys/fs/cgroup/outer";
  Write(outer + "/inner/memory.max", "max\n");
  Write(outer + "/inner/memory.current", "10000\n");
  EXPECT_EQ(Available(), 1000 * 1024);
  Write(outer + "/memory.max", "50000\n");
  Write(outer + "/memory.current", "30000\n");
  EXPECT_EQ(Available(), 20000);
  // The cache of files is no obstacle.
  Write(outer + "/memory.stat", "anon 25000\nfile 5000\ninactive_file 4000\n");
  EXPECT_EQ(Available(), 24000);
  Write(outer + "/inner/memory.max", "12000\n");
  EXPECT_EQ(Available(), 2000);
}

TEST_F(DeviceMemoryTest, InAContainerTheRootIsItsGroup) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "0::/docker/abc\n");
  Write("/sys/fs/cgroup/memory.max", "8000\n");
  Write("/sys/fs/cgroup/memory.current", "9000\n");
  EXPECT_EQ(Available(), 0);
}

TEST_F(DeviceMemoryTest, GroupsOfVersion1) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "5:cpu:/x\n7:memory:/box\n");
  Write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "70000\n");
  Write("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "30000\n");
  Write("/sys/fs/cgroup/memory/box/memory.stat",
        "inactive_file 1\ntotal_inactive_file 5000\n");
  EXPECT_EQ(Available(), 45000);
}

}  // namespace
}  // namespace capstan
