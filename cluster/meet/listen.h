// SPDX-License-Identifier: Apache-2.0
//
// Which of its host's addresses a rank uses.
#ifndef CAPSTAN_CLUSTER_MEET_LISTEN_H_
#define CAPSTAN_CLUSTER_MEET_LISTEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "cluster/launch/network.h"
#include "cluster/launch/rank_info.h"

namespace capstan {

// A host's network interfaces and default route.
struct HostNetwork {
  std::vector<InterfaceAddress> interfaces;  // those that are up
  absl::optional<SocketAddress> default_route;
};
HostNetwork ThisHostsNetwork();

// Returns the address of `interface` that other hosts reach best. NOT_FOUND
// lists the existing interfaces.
absl::StatusOr<SocketAddress> AddressOfInterface(const std::string& interface,
                                                 const HostNetwork& network);

// Returns the address of the default route's interface; without such a route,
// the first address that isn't loopback, if there is one.
SocketAddress DefaultAddress(const HostNetwork& network);

// Returns where rank 0 listens, with info.master_port: first its address for
// traffic between hosts, then this host's others among `master`, since a name
// can resolve to another address here (127.0.1.1) than elsewhere. Only loopback
// if the run stays on this host.
absl::StatusOr<std::vector<SocketAddress>> AddressesToListenAt(
    const RankInfo& info, const std::vector<SocketAddress>& master,
    const HostNetwork& network);

// Rank 0's listening sockets.
struct Listening {
  std::vector<SocketFd> sockets;
  std::vector<SocketAddress> addresses;  // theirs; the first as above
};

// Listens for the other ranks; uses info.listen_fd if it is set. Retries for a
// while if the port is in use, since the run that has it may be ending.
absl::StatusOr<Listening> ListenForRanks(const RankInfo& info,
                                         Deadline deadline);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_LISTEN_H_
