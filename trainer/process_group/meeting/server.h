// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_SERVER_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/process_group/meeting/network.h"

namespace capstan {

struct MeetingServerOptions {
  int world_size = 1;
  std::string run_key;
  std::string token;
  // Rank 0's address in the traffic between hosts, told to all.
  std::string host_address;
  // Where ranks are awaited, for lines about those that don't come.
  std::string where;
  // Before all have met, a rank that leaves isn't the end of the meeting.
  bool ranks_come_again = false;
  // When time is up, and this many ranks or more are there without those of
  // hosts of which one is missing, the meeting ends with kHostsGone; 0: never.
  int least_ranks = 0;
  int ranks_per_host = 1;
  // How long somebody may take to prove to be a rank.
  std::chrono::milliseconds handshake_limit{10000};
  // Takes one line about those who don't belong here, once for each kind of
  // them; on the server's thread. Default: standard error.
  std::function<void(const std::string& line)> warn;
};

// Rank 0's side of the meeting, on a thread of its own. Admits the ranks, and
// turns away everybody else, in bounded time and memory and without disturbing
// the ranks. Once all have joined it no longer listens, and serves their keys.
// If one leaves before that, or has waited long enough, the meeting has failed,
// and all hear why.
class MeetingServer {
 public:
  static absl::StatusOr<std::unique_ptr<MeetingServer>> Start(
      MeetingServerOptions options, std::vector<SocketFd> listening);
  // Closes all connections.
  ~MeetingServer();
  MeetingServer(const MeetingServer&) = delete;
  MeetingServer& operator=(const MeetingServer&) = delete;

  // A connection for this process; call once.
  SocketFd TakeOwnEnd() { return std::move(own_end_); }

 private:
  class Loop;
  MeetingServer();

  std::unique_ptr<Loop> loop_;
  SocketFd own_end_;
  std::thread thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_SERVER_H_
