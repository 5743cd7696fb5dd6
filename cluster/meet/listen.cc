// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/listen.h"

#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
// How long a port in use is tried.
constexpr std::chrono::seconds kPortPatience{10};

// Lower is better for traffic between hosts.
int Preference(const SocketAddress& address) {
  if (address.IsLoopback()) return 3;
  if (address.IsLinkLocal()) return 2;
  return address.family() == AF_INET ? 0 : 1;
}

bool IsOf(const HostNetwork& network, const SocketAddress& address) {
  return std::any_of(network.interfaces.begin(), network.interfaces.end(),
                     [&](const InterfaceAddress& one) {
                       return one.address.SameHost(address);
                     }) ||
         // Linux answers to all of 127.0.0.0/8.
         (address.IsLoopback() && address.family() == AF_INET);
}

void AddNew(const SocketAddress& address, std::vector<SocketAddress>* list) {
  const bool there = std::any_of(
      list->begin(), list->end(),
      [&](const SocketAddress& one) { return one.SameHost(address); });
  if (!there) list->push_back(address);
}

// What rank 0's name stands for here; a name that only others know is none.
std::vector<SocketAddress> MasterAddresses(const RankInfo& info) {
  if (info.master_addr.empty()) return {};
  const auto found = Resolve(info.master_addr, info.master_port);
  return found.ok() ? *found : std::vector<SocketAddress>();
}

// Whether all of the run's traffic stays on this host: no other host takes
// part, and none of the addresses `master` of rank 0 is on another host.
bool StaysOnHost(const RankInfo& info,
                 const std::vector<SocketAddress>& master) {
  if (info.nodes > 1) return false;
  if (info.master_addr.empty()) return true;
  return !master.empty() && std::all_of(master.begin(), master.end(),
                                        [](const SocketAddress& address) {
                                          return address.IsLoopback();
                                        });
}

}  // namespace

HostNetwork ThisHostsNetwork() {
  return {InterfaceAddresses(), DefaultRouteAddress()};
}

absl::StatusOr<SocketAddress> AddressOfInterface(const std::string& interface,
                                                 const HostNetwork& network) {
  SocketAddress best;
  std::set<std::string> names;
  for (const InterfaceAddress& one : network.interfaces) {
    names.insert(one.interface);
    if (one.interface != interface) continue;
    if (!best.valid() || Preference(one.address) < Preference(best)) {
      best = one.address;
    }
  }
  if (best.valid()) return best;
  return absl::NotFoundError(absl::StrCat(
      "launch { interface }: host ", HostName(), " has no network interface ",
      interface, " that is up and has an address; it has ",
      absl::StrJoin(names, ", ")));
}

SocketAddress DefaultAddress(const HostNetwork& network) {
  if (network.default_route.has_value()) return *network.default_route;
  SocketAddress best = *SocketAddress::Parse(kLoopback, 0);
  for (const InterfaceAddress& one : network.interfaces) {
    if (Preference(one.address) < Preference(best)) best = one.address;
  }
  return best;
}

absl::StatusOr<std::vector<SocketAddress>> AddressesToListenAt(
    const RankInfo& info, const std::vector<SocketAddress>& master,
    const HostNetwork& network) {
  std::vector<SocketAddress> local;
  for (const SocketAddress& address : master) {
    if (IsOf(network, address)) AddNew(address, &local);
  }
  std::vector<SocketAddress> all;
  if (StaysOnHost(info, master)) {
    all.push_back(local.empty() ? *SocketAddress::Parse(kLoopback, 0)
                                : local.front());
  } else {
    SocketAddress first;
    if (!info.interface.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(first,
                               AddressOfInterface(info.interface, network));
    } else {
      const auto outside = std::find_if(
          local.begin(), local.end(),
          [](const SocketAddress& address) { return !address.IsLoopback(); });
      first = outside != local.end() ? *outside : DefaultAddress(network);
    }
    all.push_back(first);
    for (const SocketAddress& address : local) AddNew(address, &all);
  }
  for (SocketAddress& address : all) address.set_port(info.master_port);
  return all;
}

absl::StatusOr<Listening> ListenForRanks(const RankInfo& info,
                                         Deadline deadline) {
  CAPSTAN_ASSIGN_OR_RETURN(
      std::vector<SocketAddress> wanted,
      AddressesToListenAt(info, MasterAddresses(info), ThisHostsNetwork()));
  Listening listening;
  if (info.listen_fd >= 0) {
    SocketAddress bound = SocketAddress::OwnEnd(info.listen_fd);
    if (bound.IsWildcard()) {
      const int port = bound.port();
      bound = wanted.front();
      bound.set_port(port);
    }
    const int flags = fcntl(info.listen_fd, F_GETFL);
    if (!bound.valid() || flags < 0 ||
        fcntl(info.listen_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
      return absl::InternalError("the launcher's socket isn't one");
    }
    listening.sockets.emplace_back(info.listen_fd);
    listening.addresses.push_back(bound);
    return listening;
  }

  const Deadline begin = MeetingClock::now();
  const Deadline end = std::min(deadline, begin + kPortPatience);
  while (true) {
    absl::StatusOr<SocketFd> first = ListenAt(&wanted.front());
    if (first.ok()) {
      listening.sockets.push_back(*std::move(first));
      listening.addresses.push_back(wanted.front());
      break;
    }
    if (!absl::IsAlreadyExists(first.status())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank 0 can't listen for the others at ", first.status().message()));
    }
    if (MeetingClock::now() >= end) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank 0 can't listen for the others at ", first.status().message(),
          ": another run or program has this port; give each run its own "
          "(MASTER_PORT)"));
    }
    std::this_thread::sleep_for(PauseBeforeRetry(
        MeetingClock::now() - begin, std::chrono::milliseconds(200)));
  }
  for (size_t i = 1; i < wanted.size(); ++i) {
    wanted[i].set_port(listening.addresses[0].port());
    absl::StatusOr<SocketFd> more = ListenAt(&wanted[i]);
    // The first is what counts; those who come this way have others to try.
    if (!more.ok()) continue;
    listening.sockets.push_back(*std::move(more));
    listening.addresses.push_back(wanted[i]);
  }
  return listening;
}

}  // namespace capstan
