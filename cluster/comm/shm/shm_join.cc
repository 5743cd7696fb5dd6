// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/shm/shm_join.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/meet/rendezvous.h"

namespace capstan {
namespace {

// The meeting in the segment created by members[0] (unless that is this rank).
// `texts` are "PID ADDRESS".
absl::StatusOr<std::unique_ptr<ShmMeeting>> OpenMeeting(
    const std::vector<ShmMember>& members, int index, int buffers,
    const std::vector<std::string>& texts,
    absl::StatusOr<std::unique_ptr<ShmSegment>> segment) {
  std::vector<ShmPeer> peers;
  for (const ShmMember& member : members) {
    int pid = 0;
    if (!absl::SimpleAtoi(
            texts[member.place].substr(0, texts[member.place].find(' ')),
            &pid)) {
      return absl::InternalError("a rank told no process id");
    }
    peers.push_back({member.name, pid});
  }
  if (index != 0) {
    const std::string& first = texts[members[0].place];
    segment = ShmSegment::Open(first.substr(first.find(' ') + 1),
                               static_cast<int>(members.size()), buffers);
  }
  CAPSTAN_RETURN_IF_ERROR(segment.status());
  return ShmMeeting::Create(*std::move(segment), index, std::move(peers),
                            kCollectiveTimeout);
}

}  // namespace

absl::StatusOr<ShmJoined> JoinShmMeeting(const std::vector<ShmMember>& members,
                                         int place, int buffers,
                                         const ExchangeFunction& exchange) {
  const auto self =
      std::find_if(members.begin(), members.end(),
                   [&](const ShmMember& m) { return m.place == place; });
  const int index = static_cast<int>(self - members.begin());
  const bool alone = members.size() == 1;
  absl::StatusOr<std::unique_ptr<ShmSegment>> segment =
      std::unique_ptr<ShmSegment>();
  if (index == 0 && !alone) {
    segment = ShmSegment::Create(static_cast<int>(members.size()), buffers);
  }
  const std::string address =
      segment.ok() && *segment != nullptr ? (*segment)->address() : "";
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           exchange(absl::StrCat(getpid(), " ", address)));
  absl::StatusOr<std::unique_ptr<ShmMeeting>> meeting =
      std::unique_ptr<ShmMeeting>();
  if (!alone) {
    meeting = OpenMeeting(members, index, buffers, texts, std::move(segment));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> results,
                           exchange(meeting.ok() ? "ok" : "failed"));
  ShmJoined joined;
  joined.problem = meeting.status();
  for (const std::string& result : results) {
    joined.can_share.push_back(result == "ok");
  }
  const bool all_can = std::all_of(
      members.begin(), members.end(),
      [&](const ShmMember& member) { return joined.can_share[member.place]; });
  if (!alone && all_can) {
    joined.meeting = *std::move(meeting);
    // All have mapped it.
    joined.meeting->segment()->CloseFile();
  }
  return joined;
}

}  // namespace capstan
