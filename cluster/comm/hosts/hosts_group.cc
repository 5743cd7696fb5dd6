// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/hosts_group.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/async_group.h"
#include "cluster/comm/communication_meter.h"
#include "cluster/comm/hosts/host_layout.h"
#include "cluster/comm/hosts/hosts_collectives.h"
#include "cluster/comm/shm/shm_collectives.h"
#include "cluster/comm/shm/shm_meeting.h"
#include "cluster/comm/single_group.h"
#include "cluster/meet/rendezvous.h"
#include "cluster/meet/texts_of_ranks.h"
#include "cluster/watch/ledger.h"

namespace capstan {
namespace {

// A rank of a group being created.
struct Member {
  int place;  // its rank among those that exchange texts
  int name;   // its rank in the run
  int host;   // any number, equal on one host
};

// All-gathers a text, of a part of a group of less than 64 bytes. Returns the
// texts by rank; if `whose` isn't empty, those of other ranks may be empty.
using Exchange = std::function<absl::StatusOr<std::vector<std::string>>(
    const std::string& mine, const std::vector<int>& whose)>;

// How this rank and the others create groups.
struct Creation {
  int place;
  Exchange exchange;
  BackendGroup::Connect connect;
  std::string prefix;  // of the group's keys, for `connect`
  std::shared_ptr<CommunicationMeter> meter;
  c10::intrusive_ptr<c10d::Store> store;
  // Of the whole group, or null for itself.
  AsyncGroup* parent = nullptr;
  // Null if the whole group is on one host.
  std::shared_ptr<HostFailures> failures;
};

// Creates the group of `members`, of which this rank is one. Called by all
// ranks that exchange texts at once, each with its own members.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateGroup(
    std::vector<Member> members, const Creation& creation);

class HostsGroup final : public AsyncGroup {
 public:
  HostsGroup(std::unique_ptr<SyncCollectives> collectives, std::string name,
             std::vector<int> hosts, Creation creation)
      : AsyncGroup(std::move(collectives), std::move(name),
                   std::move(creation.meter), creation.parent),
        hosts_(std::move(hosts)),
        connect_(std::move(creation.connect)),
        prefix_(std::move(creation.prefix)),
        failures_(std::move(creation.failures)) {}

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override;

 private:
  const std::vector<int> hosts_;  // by rank
  const BackendGroup::Connect connect_;
  const std::string prefix_;
  const std::shared_ptr<HostFailures> failures_;
  int splits_ = 0;
};

absl::StatusOr<std::unique_ptr<ProcessGroup>> HostsGroup::Split(int color) {
  const std::string prefix = absl::StrCat(prefix_, "/", splits_++, ".", color);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int> ranks, RanksOfColor(color));
  std::vector<Member> members;
  for (const int i : ranks) members.push_back({i, name_of(i), hosts_[i]});
  return CreateGroup(
      std::move(members),
      {rank(),
       [this](const std::string& text, const std::vector<int>&) {
         return ExchangeTexts(text);
       },
       connect_, prefix, std::make_shared<CommunicationMeter>(meter()),
       /*store=*/nullptr, /*parent=*/this, failures_});
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> StartGroup(
    std::unique_ptr<SyncCollectives> collectives, const std::string& name,
    std::vector<int> hosts, const Creation& creation) {
  auto group = std::make_unique<HostsGroup>(std::move(collectives), name,
                                            std::move(hosts), creation);
  CAPSTAN_RETURN_IF_ERROR(group->Start());
  return group;
}

// The meeting in the segment created by members[0] (unless that is this rank).
// `texts` are "PID ADDRESS".
absl::StatusOr<std::unique_ptr<ShmMeeting>> OpenMeeting(
    const std::vector<Member>& members, int index, int buffers,
    const std::vector<std::string>& texts,
    absl::StatusOr<std::unique_ptr<ShmSegment>> segment) {
  std::vector<ShmPeer> peers;
  for (const Member& member : members) {
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

struct ShmJoined {
  // Joins this rank's members; null for a single one, or if any of them failed.
  std::unique_ptr<ShmMeeting> meeting;
  // For each rank that exchanged texts, whether it can share memory with the
  // others of its host.
  std::vector<bool> can_share;
  // This rank's error, if it can't.
  absl::Status problem;
};

// Creates or opens the segment shared by `members`, a host's, of which this
// process is members[index], with `buffers` additional slots. Called by all
// ranks that exchange texts at once, each with its own host's members. Returns
// errors of `exchange`.
absl::StatusOr<ShmJoined> JoinShmMeeting(const std::vector<Member>& members,
                                         int index, int buffers,
                                         const Exchange& exchange) {
  const bool alone = members.size() == 1;
  absl::StatusOr<std::unique_ptr<ShmSegment>> segment =
      std::unique_ptr<ShmSegment>();
  if (index == 0 && !alone) {
    segment = ShmSegment::Create(static_cast<int>(members.size()), buffers);
  }
  const std::string address =
      segment.ok() && *segment != nullptr ? (*segment)->address() : "";
  std::vector<int> whose;
  for (const Member& member : members) whose.push_back(member.place);
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      exchange(absl::StrCat(getpid(), " ", address), whose));
  absl::StatusOr<std::unique_ptr<ShmMeeting>> meeting =
      std::unique_ptr<ShmMeeting>();
  if (!alone) {
    meeting = OpenMeeting(members, index, buffers, texts, std::move(segment));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> results,
                           exchange(meeting.ok() ? "ok" : "failed", {}));
  ShmJoined joined;
  joined.problem = meeting.status();
  for (const std::string& result : results) {
    joined.can_share.push_back(result == "ok");
  }
  const bool all_can = std::all_of(
      members.begin(), members.end(),
      [&](const Member& member) { return joined.can_share[member.place]; });
  if (!alone && all_can) {
    joined.meeting = *std::move(meeting);
    // All have mapped it.
    joined.meeting->segment()->CloseFile();
  }
  return joined;
}

std::vector<int> HostsOf(const std::vector<Member>& members) {
  std::vector<int> hosts;
  for (const Member& member : members) hosts.push_back(member.host);
  return hosts;
}

// Hosts whose ranks can't share memory become hosts of one rank each.
void Separate(const std::vector<bool>& can_share,
              std::vector<Member>* members) {
  int next = 0;
  std::map<int, bool> shares;
  for (const Member& member : *members) {
    next = std::max(next, member.host + 1);
    const bool can = can_share[member.place];
    const auto found = shares.emplace(member.host, can).first;
    found->second = found->second && can;
  }
  for (Member& member : *members) {
    if (!shares[member.host]) member.host = next++;
  }
}

// The memory of a host of one rank.
absl::StatusOr<std::unique_ptr<ShmMeeting>> MeetAlone(int name) {
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<ShmSegment> segment,
      ShmSegment::Create(1, HostsCollectives::Buffers(/*segments=*/1)));
  segment->CloseFile();
  return ShmMeeting::Create(std::move(segment), 0, {{name, getpid()}},
                            kCollectiveTimeout);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectHosts(
    const HostLayout& layout, std::unique_ptr<ShmMeeting> meeting,
    const std::vector<Member>& members, const Creation& creation) {
  std::vector<int> names;
  for (const Member& member : members) names.push_back(member.name);
  const int name = names[layout.rank()];
  if (meeting == nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(meeting, MeetAlone(name));
  }
  const HostsCollectives::Connect connect =
      [connect = creation.connect, host = layout.host(),
       hosts = layout.hosts()](const std::string& prefix) {
        return connect(prefix, host, hosts);
      };
  std::unique_ptr<HostsCollectives> collectives;
  try {
    collectives = std::make_unique<HostsCollectives>(
        layout, names, std::move(meeting), creation.prefix, connect,
        creation.failures, creation.store);
  } catch (...) {
    return LostPeerError(
        absl::StrCat("rank ", name, " could not connect to the other hosts' ",
                     "ranks with Gloo (GLOO_SOCKET_IFNAME names the network ",
                     "interface): ", CurrentExceptionToStatus().message()));
  }
  Creation with_failures = creation;
  with_failures.failures = collectives->failures();
  return StartGroup(std::move(collectives), "shm+gloo", HostsOf(members),
                    with_failures);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateGroup(
    std::vector<Member> members, const Creation& creation) {
  const auto self = std::find_if(
      members.begin(), members.end(),
      [&](const Member& member) { return member.place == creation.place; });
  const int rank = static_cast<int>(self - members.begin());
  const HostLayout wanted(rank, HostsOf(members));
  std::vector<Member> locals;
  for (int p = wanted.begin(wanted.host()); p < wanted.end(wanted.host());
       ++p) {
    locals.push_back(members[wanted.rank_at(p)]);
  }
  const int buffers =
      wanted.hosts() == 1
          ? 0
          : HostsCollectives::Buffers(wanted.SegmentsOf(wanted.host()));
  CAPSTAN_ASSIGN_OR_RETURN(
      ShmJoined joined,
      JoinShmMeeting(locals, wanted.local(rank), buffers, creation.exchange));
  if (!joined.problem.ok()) {
    // Warn, since this is slower and nothing else would show it.
    std::cerr << absl::StrCat(
        "NOTE: rank ", members[rank].name,
        " can't share memory with the other ranks of its host, which then use "
        "Gloo: ",
        std::string(joined.problem.message()), "\n");
  }
  if (members.size() == 1) return CreateSingleGroup(at::kCPU);
  Separate(joined.can_share, &members);
  const HostLayout layout(rank, HostsOf(members));
  if (layout.hosts() == 1) {
    return StartGroup(
        std::make_unique<ShmCollectives>(std::move(joined.meeting)), "shm",
        HostsOf(members), creation);
  }
  if (creation.parent != nullptr && creation.failures == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ranks of a part of a group on one host can't share "
        "memory",
        joined.problem.ok() ? "" : ": ", joined.problem.message()));
  }
  return ConnectHosts(layout, std::move(joined.meeting), members, creation);
}

constexpr char kFlat[] = "gloo";

// HostKey; kFlat if a flat group is wanted.
std::string HostText(int rank) {
  const char* choice = getenv("CAPSTAN_CPU_COLLECTIVES");
  if (choice != nullptr && std::string(choice) == "gloo") return kFlat;
  return HostKey(rank);
}

Exchange ExchangeThrough(c10d::Store* store, const RankInfo& info) {
  return [store, &info, round = 0](const std::string& mine,
                                   const std::vector<int>& whose) mutable
         -> absl::StatusOr<std::vector<std::string>> {
    const std::string key = absl::StrCat("capstan/shm/", ++round);
    if (whose.empty()) {
      return TextsOfRanks(*store, key, info.rank, info.world_size, mine);
    }
    std::vector<std::string> keys;
    for (const int rank : whose) keys.push_back(absl::StrCat(key, "/", rank));
    store->set(absl::StrCat(key, "/", info.rank), ToStored(mine));
    const std::vector<std::vector<uint8_t>> values = store->multiGet(keys);
    std::vector<std::string> texts(info.world_size);
    for (size_t i = 0; i < whose.size(); ++i) {
      texts[whose[i]] = FromStored(values[i]);
    }
    return texts;
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateHostsGroup(
    const RankInfo& info, const c10::intrusive_ptr<c10d::Store>& store,
    BackendGroup::Connect connect) {
  const Exchange exchange = ExchangeThrough(store.get(), info);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           exchange(HostText(info.rank), {}));
  std::map<std::string, int> hosts;
  std::vector<Member> members;
  for (int rank = 0; rank < info.world_size; ++rank) {
    if (texts[rank] == kFlat) return nullptr;
    const int next = static_cast<int>(hosts.size());
    members.push_back(
        {rank, rank, hosts.emplace(texts[rank], next).first->second});
  }
  const HostLayout layout(info.rank, HostsOf(members));
  if (layout.MostSegmentsOfAHost() > HostsCollectives::kMaxSegments) {
    return nullptr;
  }
  return CreateGroup(
      std::move(members),
      {info.rank, exchange, std::move(connect), "hosts",
       std::make_shared<CommunicationMeter>(), store, nullptr, nullptr});
}

}  // namespace capstan
