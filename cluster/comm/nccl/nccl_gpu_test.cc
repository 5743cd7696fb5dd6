// SPDX-License-Identifier: Apache-2.0
//
// The collectives on this machine's GPUs, one rank each. Skipped without a GPU;
// see tests/gpu/run.sh.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/gpus.h"
#include "base/status.h"
#include "cluster/comm/collectives_for_test.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"

namespace capstan {
namespace {

absl::Status UseGpus(const RankInfo& info) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                           CreateProcessGroup(info, CountGpus()));
  Require(group->backend() == (info.world_size > 1 ? "nccl" : "none"),
          "backend");
  Require(group->device() == at::Device(at::kCUDA, info.local_rank), "device");
  for (at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (int64_t size : {1, 5, 17}) CheckCollectives(group.get(), dtype, size);
  }
  CheckOverlap(group.get());
  std::vector<double> values = {1.5, 1e300};
  group->AllReduceHost(absl::MakeSpan(values));
  Require(values[0] == 1.5 * info.world_size, "sum of host numbers");
  if (info.world_size > 1) {
    // The host has waited for what came before, so that it has been measured.
    const CommunicationStats stats = group->stats();
    Require(stats.busy_seconds > 0.0, "times of collectives");
    Require(stats.exposed_seconds > 0.0, "waits for collectives");
    Require(stats.exposed_seconds < 600.0, "seconds");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const auto same, group->Split(0));
  Require(same->size() == info.world_size, "all in one group");
  CheckCollectives(same.get(), at::kFloat, 17);
  CAPSTAN_ASSIGN_OR_RETURN(const auto alone, group->Split(info.rank));
  Require(alone->size() == 1 && alone->backend() == "none", "groups of one");
  CheckCollectives(alone.get(), at::kFloat, 17);
  return absl::OkStatus();
}

TEST(NcclGpu, OneRank) {
  if (CountGpus() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(LaunchRanks(1, UseGpus), 0);
}

// Settings of launch.nccl arrive where NCCL checks them.
TEST(NcclGpu, TakesSettings) {
  if (CountGpus() < 2) GTEST_SKIP() << "fewer than two GPUs";
  const auto with = [](NcclSettings settings) {
    return LaunchRanks(2, [settings](RankInfo info) {
      info.nccl = settings;
      return CreateProcessGroup(info, CountGpus()).status();
    });
  };
  EXPECT_EQ(with({60.0, 8, 2, 4}), 0);
  // Which the config's check would have refused.
  EXPECT_NE(with({60.0, 8, 8, 4}), 0);
}

TEST(NcclGpu, OneRankPerGpu) {
  if (CountGpus() < 2) GTEST_SKIP() << "fewer than two GPUs";
  EXPECT_EQ(LaunchRanks(CountGpus(), UseGpus), 0);
}

}  // namespace
}  // namespace capstan
