// SPDX-License-Identifier: Apache-2.0
//
// What a program needs to run ranks of its own: see ../README.md.
#include <ATen/ops/full.h>
#include <stdio.h>

#include <iostream>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/place.h"
#include "plugins/sdk/process_group.h"

namespace {

using capstan::Place;
using capstan::ProcessGroup;
using capstan::RankInfo;

absl::Status Sum(const RankInfo& info) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                           capstan::CreateProcessGroup(info, /*gpus=*/0));
  capstan::RanksHaveMet();
  const at::Tensor values = at::full({1000}, info.rank + 1.0f);
  group->AllReduce(values)->Wait();
  if (info.rank == 0) {
    printf("%d ranks: %g\n", group->size(), values[0].item<float>());
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  capstan::LaunchSettings settings;
  settings.processes = 4;
  absl::StatusOr<Place> place = capstan::FindPlace(settings, /*gpus=*/0);
  absl::Status status = place.status();
  if (status.ok()) status = capstan::AskLauncher(&*place);
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  return place->forks ? capstan::LaunchRanks(*place, Sum)
                      : capstan::RunSingleRank(place->info, Sum);
}
