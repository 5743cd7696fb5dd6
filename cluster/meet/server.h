// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_SERVER_H_
#define CAPSTAN_CLUSTER_MEET_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cluster/launch/network.h"

namespace capstan {

struct MeetingServerOptions {
  int world_size = 1;
  std::string run_key;
  std::string token;
  // Rank 0's address in the traffic between hosts, told to all.
  std::string host_address;
  // The address, for messages about missing ranks.
  std::string where;
  // Whether the meeting survives a rank that leaves before all have met.
  bool ranks_come_again = false;
  // On a timeout, the meeting ends with kHostsGone if the hosts whose ranks
  // have all come have at least this many ranks; 0: never.
  int least_ranks = 0;
  int ranks_per_host = 1;
  // How long a peer may take to prove that it is a rank.
  std::chrono::milliseconds handshake_limit{10000};
  // Takes a line about peers that were refused, once for each kind; called on
  // the server's thread. Default: standard error.
  std::function<void(const std::string& line)> warn;
};

// Rank 0's side of the meeting, on a thread of its own. Admits the ranks and
// refuses everybody else, in bounded time and memory and without disturbing the
// ranks. Once all have joined it stops listening and serves their keys. If a
// rank leaves before that, or has waited long enough, the meeting fails and
// tells all ranks why.
class MeetingServer {
 public:
  static absl::StatusOr<std::unique_ptr<MeetingServer>> Start(
      MeetingServerOptions options, std::vector<SocketFd> listening);
  // Closes all connections.
  virtual ~MeetingServer() = default;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_SERVER_H_
