// SPDX-License-Identifier: Apache-2.0
//
// Which of its host's addresses a rank uses.
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_LISTEN_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_LISTEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/process_group/meeting/network.h"

namespace capstan {

// What a host knows of its network.
struct HostNetwork {
  std::vector<InterfaceAddress> interfaces;  // those that are up
  absl::optional<SocketAddress> default_route;
};
HostNetwork ThisHostsNetwork();

// Whether all of the run's traffic stays on this host: no other one takes part,
// and `master`, what rank 0's name stands for, doesn't lead outside.
bool StaysOnHost(const RankInfo& info,
                 const std::vector<SocketAddress>& master);

// The address of `interface` that other hosts reach best. NOT_FOUND names the
// interfaces that there are.
absl::StatusOr<SocketAddress> AddressOfInterface(const std::string& interface,
                                                 const HostNetwork& network);

// The address of the default route's interface; without such a route the first
// one that isn't loopback, if there is one.
SocketAddress DefaultAddress(const HostNetwork& network);

// Where rank 0 listens, with info.master_port: first its address in the traffic
// between hosts; then others of this host that `master` leads to, as a name can
// mean another address here (127.0.1.1) than elsewhere. Only loopback if the
// run stays on this host.
absl::StatusOr<std::vector<SocketAddress>> AddressesToListenAt(
    const RankInfo& info, const std::vector<SocketAddress>& master,
    const HostNetwork& network);

// Rank 0's listening sockets.
struct Listening {
  std::vector<SocketFd> sockets;
  std::vector<SocketAddress> addresses;  // theirs; the first as above
};

// Takes info.listen_fd if there is one. A port that is in use is tried again
// for a while: the run that has it may be ending.
absl::StatusOr<Listening> ListenForRanks(const RankInfo& info,
                                         Deadline deadline);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_LISTEN_H_
