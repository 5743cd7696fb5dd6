// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl_network.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(NcclNetworkTest, InfiniBand) {
  EXPECT_EQ(
      NcclNetwork("a:91:91 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB "
                  "[1]mlx5_3:1/RoCE [RO]; OOB eth0:172.25.30.42<0>\n"
                  "a:91:91 [3] NCCL INFO Initialized NET plugin IB\n"
                  "a:91:91 [3] NCCL INFO Assigned NET plugin IB to comm\n"
                  "a:91:91 [3] NCCL INFO Using network IB\n"
                  "a:91:91 [3] NCCL INFO DMA-BUF is available on GPU device 3"),
      "IB mlx5_0, mlx5_3");
}

TEST(NcclNetworkTest, SocketsAfterInfiniBandHasFailed) {
  EXPECT_EQ(NcclNetwork("a:1:1 [0] NCCL INFO NET/IB : No device found.\n"
                        "a:1:1 [0] NCCL INFO NET/IB : Using [RO]; OOB "
                        "net1:10.10.100.241<0>\n"
                        "a:1:1 [0] NCCL INFO Failed to initialize NET plugin "
                        "IB\n"
                        "a:1:1 [0] NCCL INFO NET/Socket : Using "
                        "[0]net1:10.10.100.241<0> [1]eth1:fe80::1%eth1<0>\n"
                        "a:1:1 [0] NCCL INFO Using network Socket\n"),
            "sockets net1, eth1");
}

TEST(NcclNetworkTest, APluginMayNotNameDevices) {
  EXPECT_EQ(NcclNetwork("a:1:1 [0] NCCL INFO NET/OFI Plugin selected platform: "
                        "AWS\na:1:1 [0] NCCL INFO Using network Libfabric\n"),
            "Libfabric");
}

TEST(NcclNetworkTest, NothingIsSaid) {
  EXPECT_EQ(NcclNetwork(""), "");
  EXPECT_EQ(NcclNetwork("a:1:1 [0] NCCL WARN Using network"), "");
}

TEST(NcclNetworkTest, TheLastWarnings) {
  constexpr char kLog[] =
      "a:91:120 [3] NCCL INFO Using network IB\n"
      "\n[2026-11-27 21:00:07] a:91:140 [3] transport/net_ib.cc:1893 NCCL WARN "
      "NET/IB : Got completion from peer 10.0.0.2<40000> with status=12\n"
      "a:91:140 [3] NCCL WARN second\n"
      "a:91:140 [3] NCCL INFO not this\n"
      "a:91:140 [3] NCCL WARN NET/IB : Got completion from peer "
      "10.0.0.2<40000> with status=12\n";
  EXPECT_EQ(NcclWarnings(kLog, ""),
            "second; NET/IB : Got completion from peer 10.0.0.2<40000> with "
            "status=12");
  EXPECT_EQ(NcclWarnings(kLog,
                         "Last error: NET/IB : Got completion from peer "
                         "10.0.0.2<40000> with status=12"),
            "second");
  EXPECT_EQ(
      NcclWarnings("NCCL WARN 1\nNCCL WARN 2\nNCCL WARN 3\nNCCL WARN 4", ""),
      "2; 3; 4");
  EXPECT_EQ(NcclWarnings("a:1:1 [0] NCCL INFO Using network IB\n", ""), "");
}

}  // namespace
}  // namespace capstan
