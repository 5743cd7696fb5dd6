// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEMBERS_MEMBERS_H_
#define CAPSTAN_CLUSTER_MEMBERS_MEMBERS_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/launch/changing_hosts.h"
#include "cluster/members/roster.h"

namespace capstan {

struct MembersOptions {
  Roster::Options roster;
  // Where the first leader listens, as all hosts are told; and the interface
  // for traffic between hosts ("": that of the address).
  std::string host;
  int port = 0;
  std::string interface;
  // As in RankInfo.
  std::string run_key;
  std::string token;
  // What must be the same on all hosts: a digest of the run's config.
  std::string digest;
  // A folder that all hosts share, where the leader says where it is; "": none.
  std::string folder;
  // How long a host's network may not answer. Its launcher may be busy or
  // stopped for longer: the system answers for it.
  std::chrono::milliseconds silence{10000};
  // How long to look for a leader.
  std::chrono::milliseconds patience{300000};
};

// Joins the hosts of the run. The launcher that can listen at the address
// leads: it has the Roster. If it is gone, the next host of the world does. If
// it was only cut off from them, it follows that one as soon as they meet again
// (Leader::Rivals).
// Returns at once; the rest is done by ChangingHosts::Handle.
// RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<ChangingHosts>> JoinHosts(
    const MembersOptions& options);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEMBERS_MEMBERS_H_
