// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/shm/shm_group.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/comm/async_group.h"
#include "cluster/comm/shm/shm_collectives.h"
#include "cluster/comm/shm/shm_join.h"
#include "cluster/comm/single_group.h"

namespace capstan {
namespace {

class ShmGroup final : public AsyncGroup {
 public:
  ShmGroup(std::unique_ptr<ShmMeeting> meeting,
           std::shared_ptr<CommunicationMeter> meter, AsyncGroup* parent)
      : AsyncGroup(std::make_unique<ShmCollectives>(std::move(meeting)), "shm",
                   std::move(meter), parent) {}

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override;
};

absl::StatusOr<std::unique_ptr<ProcessGroup>> ShmGroup::Split(int color) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int> ranks, RanksOfColor(color));
  std::vector<ShmMember> members;
  for (const int i : ranks) members.push_back({i, name_of(i)});
  CAPSTAN_ASSIGN_OR_RETURN(ShmJoined joined,
                           JoinShmMeeting(members, rank(), /*buffers=*/0,
                                          [this](const std::string& text) {
                                            return ExchangeTexts(text);
                                          }));
  for (const ShmMember& member : members) {
    if (joined.can_share[member.place]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", member.name, " can't share memory with the other ranks",
        joined.problem.ok() ? "" : ": ", joined.problem.message()));
  }
  if (members.size() == 1) return CreateSingleGroup(at::kCPU);
  return CreateShmGroup(std::move(joined.meeting),
                        std::make_shared<CommunicationMeter>(meter()), this);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateShmGroup(
    std::unique_ptr<ShmMeeting> meeting,
    std::shared_ptr<CommunicationMeter> meter, AsyncGroup* parent) {
  auto group =
      std::make_unique<ShmGroup>(std::move(meeting), std::move(meter), parent);
  CAPSTAN_RETURN_IF_ERROR(group->Start());
  return group;
}

}  // namespace capstan
