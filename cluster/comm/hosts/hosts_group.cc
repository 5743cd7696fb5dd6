// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/hosts_group.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/async_group.h"
#include "cluster/comm/communication_meter.h"
#include "cluster/comm/hosts/host_layout.h"
#include "cluster/comm/hosts/hosts_collectives.h"
#include "cluster/comm/shm/shm_group.h"
#include "cluster/comm/shm/shm_join.h"
#include "cluster/comm/single_group.h"
#include "cluster/meet/rendezvous.h"
#include "cluster/watch/ledger.h"

namespace capstan {
namespace {

// A rank of a group being created.
struct Member {
  int place;  // its rank among those that exchange texts
  int name;   // its rank in the run
  int host;   // any number, equal on one host
};

// How this rank and the others create groups.
struct Creation {
  int place;
  ExchangeFunction exchange;
  BackendGroup::Connect connect;
  std::string prefix;  // of the group's keys, for `connect`
  std::shared_ptr<CommunicationMeter> meter;
  c10::intrusive_ptr<c10d::Store> store;
  // Of the whole group, or null for itself.
  AsyncGroup* parent = nullptr;
  std::shared_ptr<HostFailures> failures;
};

// Creates the group of `members`, of which this rank is one. Called by all
// ranks that exchange texts at once, each with its own members.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateGroup(
    std::vector<Member> members, const Creation& creation);

class HostsGroup final : public AsyncGroup {
 public:
  HostsGroup(std::shared_ptr<HostFailures> failures,
             std::unique_ptr<HostsCollectives> collectives,
             std::vector<int> hosts, Creation creation)
      : AsyncGroup(std::move(collectives), "shm+gloo",
                   std::move(creation.meter), creation.parent),
        hosts_(std::move(hosts)),
        connect_(std::move(creation.connect)),
        prefix_(std::move(creation.prefix)),
        failures_(std::move(failures)) {}

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
      {rank(), [this](const std::string& text) { return ExchangeTexts(text); },
       connect_, prefix, std::make_shared<CommunicationMeter>(meter()),
       /*store=*/nullptr, /*parent=*/this, failures_});
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
  auto failures = collectives->failures();
  auto group = std::make_unique<HostsGroup>(
      std::move(failures), std::move(collectives), HostsOf(members), creation);
  CAPSTAN_RETURN_IF_ERROR(group->Start());
  return group;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateGroup(
    std::vector<Member> members, const Creation& creation) {
  const auto self = std::find_if(
      members.begin(), members.end(),
      [&](const Member& member) { return member.place == creation.place; });
  const int rank = static_cast<int>(self - members.begin());
  const HostLayout wanted(rank, HostsOf(members));
  std::vector<ShmMember> locals;
  for (int p = wanted.begin(wanted.host()); p < wanted.end(wanted.host());
       ++p) {
    const Member& member = members[wanted.rank_at(p)];
    locals.push_back({member.place, member.name});
  }
  const int buffers =
      wanted.hosts() == 1
          ? 0
          : HostsCollectives::Buffers(wanted.SegmentsOf(wanted.host()));
  CAPSTAN_ASSIGN_OR_RETURN(
      ShmJoined joined,
      JoinShmMeeting(locals, creation.place, buffers, creation.exchange));
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
    return CreateShmGroup(std::move(joined.meeting), creation.meter,
                          creation.parent);
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

ExchangeFunction ExchangeThrough(c10d::Store* store, const RankInfo& info) {
  return [store, &info, round = 0](const std::string& mine) mutable
         -> absl::StatusOr<std::vector<std::string>> {
    ++round;
    const auto key = [&](int rank) {
      return absl::StrCat("capstan/shm/", round, "/", rank);
    };
    // Some stores reject empty values.
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

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateHostsGroup(
    const RankInfo& info, const c10::intrusive_ptr<c10d::Store>& store,
    BackendGroup::Connect connect) {
  const ExchangeFunction exchange = ExchangeThrough(store.get(), info);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           exchange(HostText(info.rank)));
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
