// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/shm/shm_join.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "trainer/process_group/rendezvous.h"
#include "trainer/process_group/shm/shm_group.h"

namespace capstan {
namespace {

// The same text for processes that can open each other's files under /proc;
// empty where shared memory is not to be used.
std::string HostText() {
  const char* choice = getenv("CAPSTAN_CPU_COLLECTIVES");
  if (choice != nullptr && std::string(choice) == "gloo") return "";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = {};
  struct stat processes = {};
  if (boot.empty() || gethostname(name, sizeof(name) - 1) != 0 ||
      stat("/proc/self/ns/pid", &processes) != 0) {
    return "";
  }
  return absl::StrCat(boot, " ", name, " ", processes.st_ino, " ", geteuid());
}

ExchangeFunction ExchangeThrough(c10d::Store* store, const RankInfo& info) {
  return [store, &info, round = 0](const std::string& mine) mutable
         -> absl::StatusOr<std::vector<std::string>> {
    ++round;
    const auto key = [&](int rank) {
      return absl::StrCat("capstan/shm/", round, "/", rank);
    };
    // Not all stores take empty values.
    const std::string value = absl::StrCat("=", mine);
    store->set(key(info.rank),
               std::vector<uint8_t>(value.begin(), value.end()));
    std::vector<std::string> keys;
    for (int rank = 0; rank < info.world_size; ++rank) {
      keys.push_back(key(rank));
    }
    std::vector<std::string> texts;
    for (const std::vector<uint8_t>& bytes : store->multiGet(keys)) {
      texts.emplace_back(bytes.begin() + 1, bytes.end());
    }
    return texts;
  };
}

// The meeting in what members[0], if it isn't this one, has created. `texts`
// are "PID ADDRESS".
absl::StatusOr<std::unique_ptr<ShmMeeting>> OpenMeeting(
    const std::vector<ShmMember>& members, int index,
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
                               static_cast<int>(members.size()));
  }
  CAPSTAN_RETURN_IF_ERROR(segment.status());
  return ShmMeeting::Create(*std::move(segment), index, std::move(peers),
                            kCollectiveTimeout);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmMeeting>> JoinShmMeeting(
    const std::vector<ShmMember>& members, int place,
    const ExchangeFunction& exchange) {
  const auto self =
      std::find_if(members.begin(), members.end(),
                   [&](const ShmMember& m) { return m.place == place; });
  const int index = static_cast<int>(self - members.begin());
  const bool alone = members.size() == 1;
  absl::StatusOr<std::unique_ptr<ShmSegment>> segment =
      std::unique_ptr<ShmSegment>();
  if (index == 0 && !alone) {
    segment = ShmSegment::Create(static_cast<int>(members.size()));
  }
  const std::string address =
      segment.ok() && *segment != nullptr ? (*segment)->address() : "";
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           exchange(absl::StrCat(getpid(), " ", address)));
  absl::StatusOr<std::unique_ptr<ShmMeeting>> meeting =
      std::unique_ptr<ShmMeeting>();
  if (!alone) {
    meeting = OpenMeeting(members, index, texts, std::move(segment));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> results,
                           exchange(meeting.ok() ? "ok" : "failed"));
  for (const ShmMember& member : members) {
    if (results[member.place] == "ok") continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", member.name, " can't share memory with the other ranks",
        meeting.ok() ? "" : ": ", meeting.status().message()));
  }
  // All have it mapped.
  if (!alone) (*meeting)->segment()->CloseFile();
  return meeting;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> TryShmGroup(const RankInfo& info,
                                                          c10d::Store* store) {
  const ExchangeFunction exchange = ExchangeThrough(store, info);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                           exchange(HostText()));
  std::vector<ShmMember> members;
  for (int rank = 0; rank < info.world_size; ++rank) {
    if (hosts[rank].empty() || hosts[rank] != hosts[0]) return nullptr;
    members.push_back({rank, rank});
  }
  auto meeting = JoinShmMeeting(members, info.rank, exchange);
  if (absl::IsFailedPrecondition(meeting.status())) return nullptr;
  CAPSTAN_RETURN_IF_ERROR(meeting.status());
  auto group = std::make_unique<ShmGroup>(
      *std::move(meeting), std::make_shared<CommunicationMeter>());
  // After it nobody needs the store, which may be in a process that ends.
  CAPSTAN_RETURN_IF_ERROR(group->Barrier());
  return group;
}

}  // namespace capstan
