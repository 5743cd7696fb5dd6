// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/network.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace capstan {
namespace {

TEST(NetworkTest, FabricThatNcclWouldPassOverInSilence) {
  const std::string root = ::testing::TempDir() + "/fabric";
  EXPECT_EQ(UnusableFabric(root, "libnowhere.so.1"), "");
  for (const char* device : {"mlx5_1", "mlx5_0"}) {
    std::filesystem::create_directories(root + "/sys/class/infiniband/" +
                                        device);
  }
  EXPECT_EQ(UnusableFabric(root, "libnowhere.so.1"), "mlx5_0, mlx5_1");
  EXPECT_EQ(UnusableFabric(root, "libc.so.6"), "");
}

}  // namespace
}  // namespace capstan
