// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEMBERS_LEADER_H_
#define CAPSTAN_CLUSTER_MEMBERS_LEADER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "cluster/launch/changing_hosts.h"
#include "cluster/meet/meeting_file.h"
#include "cluster/members/host_server.h"
#include "cluster/members/members.h"
#include "cluster/members/roster.h"

namespace capstan {

// A host, as the others know it.
struct HostContact {
  std::string id;
  std::string address;  // numeric
  int port = 0;
};

// What a launcher knows of its run.
struct HostsState {
  ChangingHosts::World world;
  ChangingHosts::Ending ending;
  // The world's hosts in its order, of which the first leads, then the spares,
  // which lead when all of these are gone.
  std::vector<HostContact> contacts;
  std::set<std::string> left_out;  // KeyIn of their ids
};

// The run's leader: decides by its Roster, and tells the others. One thread;
// never blocks.
class Leader {
 public:
  // `id` is this host's. The rest outlives this. If `state` has a world, whose
  // leader is gone, this one takes over as number `place` of its contacts.
  Leader(const MembersOptions& options, const std::string& id,
         HostServer* server, HostsState* state, size_t place,
         const Roster::Departure& last);

  // A host wants to take part.
  void Enrol(HostServer::Peer* peer, const HostMessage& message);
  // What a host says, this one too, of its ranks or itself.
  void Report(const std::string& id, const HostMessage& message);
  void Lost(const std::string& id, bool silent);
  void Progressed(int64_t world, int64_t step);
  // Decides what is due; false once another host is to lead.
  bool Decide();
  // When Decide is to be called again, if nothing happens.
  Deadline next_event() const;
  // See ChangingHosts.
  int TakeListening() { return rank0_listening_.Release(); }

  // Where others of the run may go on without these hosts, since only the
  // network was cut; none once the world has done a step, for which it has the
  // run's folder. Of two leaders the one with less to show (Claim, which it
  // enrols with) follows the other.
  std::vector<SocketAddress> Rivals() const;
  HostMessage Claim() const;

 private:
  bool Outranks(const std::string& id, const HostMessage& claim) const;
  // While others may be going on, its ranks let go of the run's folder.
  void PauseIfCutOff(Deadline now);
  void Publish();
  void Refuse(HostServer::Peer* peer, const std::string& why);
  void DropThoseWhoDontEnter(Deadline now);
  void LeaveOut(const std::string& hosts, Deadline now);
  void Begin(const Roster::World& next);
  HostContact ContactOf(const std::string& id);
  void FindContacts(const std::vector<std::string>& world);
  HostMessage Decided() const;
  void TellAll();
  void LetGo(const std::string& id);
  void OrderForNextLeader(const Roster::World& next);
  // To the first of the other hosts of `next`.
  void HandOver(const Roster::World& next);
  void EndAll(const ChangingHosts::Ending& ending);

  const MembersOptions& options_;
  const std::string id_;
  HostServer* const server_;
  HostsState& state_;
  ChangingHosts::World& world_;         // state_'s
  ChangingHosts::Ending& ending_;       // state_'s
  std::vector<HostContact>& contacts_;  // state_'s
  Roster roster_;
  std::unique_ptr<MeetingFile> file_;
  SocketFd rank0_listening_;
  std::set<std::string> entered_;  // whose ranks of the world have started
  absl::optional<Deadline> enter_by_;
  std::vector<HostContact> rivals_;  // which may lead others
  bool finishing_ = false;  // some ranks of the world have ended in order
};

// How the run ends for a host that `world` doesn't have, as it left or was left
// out.
ChangingHosts::Ending EndingWithout(const ChangingHosts::World& world);

// The value of a key of a message, or `otherwise`.
template <typename T>
T HostField(const HostMessage& message, const char* key, T otherwise = T()) {
  const auto found = message.find(key);
  if (found == message.end()) return otherwise;
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    return otherwise;
  }
}

// The key by which the launchers of a run know each other.
std::string KeyOfHosts(const MembersOptions& options);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEMBERS_LEADER_H_
