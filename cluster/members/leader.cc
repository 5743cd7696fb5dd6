// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/leader.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan {

std::string KeyOfHosts(const MembersOptions& options) {
  return options.run_key + "-hosts";
}

ChangingHosts::Ending EndingWithout(const ChangingHosts::World& world) {
  if (world.left_out) return {world.why, /*failed=*/true};
  return {"this host has left the run", /*failed=*/false, /*stops=*/false,
          /*code=*/0};
}

namespace {

HostMessage EndMessage(const ChangingHosts::Ending& ending) {
  return {{"kind", "end"},
          {"text", ending.text},
          {"failed", ending.failed},
          {"stops", ending.stops},
          {"code", ending.code}};
}

}  // namespace

Leader::Leader(const MembersOptions& options, const std::string& id,
               HostServer* server, HostsState* state, size_t place,
               const Roster::Departure& last)
    : options_(options),
      id_(id),
      server_(server),
      state_(*state),
      world_(state->world),
      ending_(state->ending),
      contacts_(state->contacts),
      roster_(options.roster, MeetingClock::now()) {
  const Deadline now = MeetingClock::now();
  roster_.set_left_out(state_.left_out);
  if (world_.number > 0 && !contacts_.empty()) {
    // Those between the last leader and this host are gone.
    Roster::World before;
    before.number = world_.number;
    before.hosts.push_back(contacts_.front().id);
    const auto nodes = static_cast<size_t>(world_.nodes);
    for (size_t i = place; i < nodes; ++i) {
      before.hosts.push_back(contacts_[i].id);
    }
    roster_.TakeOver(std::move(before), last, now);
    if (!last.told) {
      rivals_.assign(contacts_.begin(),
                     contacts_.begin() + static_cast<int64_t>(place));
    }
  }
  roster_.Came(id_, now, world_.number);
  server_->ForEach(
      [&](HostServer::Peer* peer) { roster_.Came(peer->id, now); });
  if (!options_.folder.empty()) Publish();
}

void Leader::Publish() {
  MeetingPlace place;
  place.port = server_->address().port();
  place.pid = getpid();
  place.host = HostName();
  place.addresses = {server_->address().host()};
  absl::StatusOr<std::unique_ptr<MeetingFile>> file = MeetingFile::Publish(
      MeetingFilePath(options_.folder, KeyOfHosts(options_)), place);
  // Others find it at the address that they are told.
  if (file.ok()) file_ = *std::move(file);
}

void Leader::Report(const std::string& id, const HostMessage& message) {
  const Deadline now = MeetingClock::now();
  const auto kind = HostField<std::string>(message, "kind");
  const auto number = HostField<int64_t>(message, "world");
  const auto text = HostField<std::string>(message, "text");
  const bool current = number == world_.number;
  if (kind == "died" && finishing_ && current) {
    EndAll({absl::StrCat("ranks of host ", NameIn(id), " ", text,
                         " when others had finished"),
            /*failed=*/true});
  } else if (kind == "died") {
    roster_.Died(id, number, HostField<int64_t>(message, "step", -1), text,
                 HostField<bool>(message, "themselves"), now);
  } else if (kind == "failed") {
    if (roster_.Failed(id, number, text, now)) return;
    EndAll({absl::StrCat("host ", NameIn(id), ": ", text), /*failed=*/true});
  } else if (kind == "entered" && current) {
    entered_.insert(id);
    if (id == id_) enter_by_ = now + options_.roster.patience;
  } else if (kind == "leaving") {
    roster_.Leaving(id, now);
    if (!roster_.InWorld(id)) LetGo(id);
  } else if (kind == "leave_out" && current) {
    LeaveOut(text, now);
  } else if (kind == "finished" && current) {
    finishing_ = true;
    if (id != id_) return;
    EndAll({"the run has ended", /*failed=*/false, /*stops=*/false,
            HostField<int>(message, "code")});
  }
}

// A spare, of which no world's change would tell that it may go.
void Leader::LetGo(const std::string& id) {
  HostServer::Peer* const peer = server_->Find(id);
  if (peer != nullptr) peer->connection->Send(EndMessage(EndingWithout({})));
}

void Leader::LeaveOut(const std::string& hosts, Deadline now) {
  for (const absl::string_view text : absl::StrSplit(hosts, ',')) {
    size_t host = 0;
    if (!absl::SimpleAtoi(text, &host) ||
        static_cast<int>(host) >= world_.nodes) {
      continue;
    }
    const std::string& id = contacts_[host].id;
    const std::string why = absl::StrCat(
        "host ", NameIn(id), " is left out, as the run's warnings say why");
    roster_.LeaveOut(id, why, now);
  }
}

void Leader::Lost(const std::string& id, bool silent) {
  if (finishing_) return;
  roster_.Lost(id, MeetingClock::now(), silent);
  const auto contact =
      std::find_if(contacts_.begin(), contacts_.end(),
                   [&](const HostContact& one) { return one.id == id; });
  if (silent && contact != contacts_.end()) rivals_.push_back(*contact);
}

void Leader::Progressed(int64_t world, int64_t step) {
  if (world != world_.number) return;
  roster_.Progressed(step);
  if (roster_.Whole()) rivals_.clear();
}

std::vector<SocketAddress> Leader::Rivals() const {
  std::vector<SocketAddress> addresses;
  for (const HostContact& one : rivals_) {
    const auto address = SocketAddress::Parse(one.address, one.port);
    if (address.has_value()) addresses.push_back(*address);
  }
  return addresses;
}

HostMessage Leader::Claim() const {
  const bool whole = roster_.Whole();
  return {whole && roster_.progressed(), whole ? world_.nodes : 0,
          world_.number};
}

bool Leader::Outranks(const std::string& id, const HostMessage& claim) const {
  const HostMessage mine = Claim();
  return mine != claim ? mine > claim : id_ > id;
}

Deadline Leader::next_event() const {
  if (finishing_) return Deadline::max();
  return std::min(roster_.next_event(), enter_by_.value_or(Deadline::max()));
}

void Leader::Refuse(HostServer::Peer* peer, const std::string& why) {
  peer->connection->Send(
      {{"kind", "end"}, {"failed", true}, {"code", 1}, {"text", why}});
  peer->connection->Close();
}

void Leader::Enrol(HostServer::Peer* peer, const HostMessage& message) {
  HostConnection& connection = *peer->connection;
  const auto id = HostField<std::string>(message, "id");
  if (id.empty() || id.size() > 2 * kMaxNameBytes) return connection.Close();
  if (HostField<std::string>(message, "digest") != options_.digest) {
    return Refuse(peer,
                  "this host's config isn't that of the run's other hosts: "
                  "start the same command with the same files on all");
  }
  const int ranks = HostField<int>(message, "ranks");
  if (ranks != options_.roster.ranks_per_host) {
    return Refuse(peer, absl::StrCat("this host has ", ranks,
                                     " ranks, and the run's other hosts have ",
                                     options_.roster.ranks_per_host,
                                     ": set launch.processes"));
  }
  const int port = HostField<int>(message, "port");
  rivals_.erase(
      std::remove_if(rivals_.begin(), rivals_.end(),
                     [&](const HostContact& one) { return one.id == id; }),
      rivals_.end());
  const auto leads = message.find("leads");
  if (leads != message.end() && !Outranks(id, *leads)) {
    rivals_.push_back(
        {id, SocketAddress::OtherEnd(connection.fd()).host(), port});
    return connection.Close();
  }
  server_->Enrol(peer, id, port);
  roster_.Came(id, MeetingClock::now(), HostField<int64_t>(message, "number"));
  if (roster_.LeftOut(id)) {
    return Refuse(peer, absl::StrCat("host ", NameIn(id),
                                     " has been left out of the run"));
  }
  if (world_.node_rank >= 0) {
    TellAll();
  } else if (leads != message.end()) {
    // No world yet, but a leader to follow.
    HostMessage none = Decided();
    none["number"] = 0;
    connection.Send(none);
  }
}

bool Leader::Decide() {
  const Deadline now = MeetingClock::now();
  // Ranks that stop may die before they have.
  if (finishing_ || (!ending_.text.empty() && !ending_.stops)) {
    return true;
  }
  DropThoseWhoDontEnter(now);
  const absl::optional<Roster::World> next = roster_.Next(now);
  if (next.has_value()) {
    if (next->hosts.front() != id_) {
      HandOver(*next);
      return false;
    }
    Begin(*next);
  }
  PauseIfCutOff(now);
  const absl::optional<Roster::Ending> ending = roster_.End(now);
  if (ending.has_value()) {
    if (ending->stops) roster_.StopAll();
    EndAll({ending->text, /*failed=*/true, ending->stops});
  }
  return true;
}

void Leader::PauseIfCutOff(Deadline now) {
  if (!roster_.CutOff() || world_.node_rank < 0) return;
  ++world_.number;
  world_.node_rank = -1;
  world_.gentle = false;
  // The next world exceeds it.
  roster_.Came(id_, now, world_.number);
}

// A launcher that is stopped keeps its connections.
void Leader::DropThoseWhoDontEnter(Deadline now) {
  if (!enter_by_.has_value() || now < *enter_by_) return;
  enter_by_.reset();
  server_->ForEach([&](HostServer::Peer* peer) {
    const bool in_world =
        std::any_of(contacts_.begin(), contacts_.begin() + world_.nodes,
                    [&](const HostContact& one) { return one.id == peer->id; });
    if (!in_world || entered_.count(peer->id) > 0) return;
    roster_.Lost(peer->id, now);
    peer->connection->Close();
  });
}

void Leader::Begin(const Roster::World& next) {
  // On the address that the others use.
  SocketAddress address = server_->address();
  address.set_port(0);
  absl::StatusOr<SocketFd> listening = ListenAt(&address);
  if (!listening.ok()) {
    return EndAll({std::string(listening.status().message()), /*failed=*/true});
  }
  rank0_listening_ = *std::move(listening);
  world_ = ChangingHosts::World();
  world_.number = next.number;
  world_.node_rank = 0;
  world_.nodes = static_cast<int>(next.hosts.size());
  world_.master_addr = address.host();
  world_.master_port = address.port();
  world_.gentle = next.gentle;
  world_.saves = next.saves;
  world_.why = next.why;
  entered_.clear();
  enter_by_.reset();
  FindContacts(next.hosts);
  for (int i = 0; i < world_.nodes; ++i) {
    world_.addresses.push_back(contacts_[i].address);
  }
  TellAll();
}

HostContact Leader::ContactOf(const std::string& id) {
  if (id == id_) {
    return {id, server_->address().host(), server_->address().port()};
  }
  const HostServer::Peer* const peer = server_->Find(id);
  if (peer == nullptr) return {id, "", 0};
  return {id, SocketAddress::OtherEnd(peer->connection->fd()).host(),
          peer->port};
}

void Leader::FindContacts(const std::vector<std::string>& world) {
  contacts_.clear();
  for (const std::string& id : world) contacts_.push_back(ContactOf(id));
  server_->ForEach([&](HostServer::Peer* peer) {
    const bool there =
        std::find(world.begin(), world.end(), peer->id) != world.end();
    if (!there && !roster_.LeftOut(peer->id)) {
      contacts_.push_back(ContactOf(peer->id));
    }
  });
}

HostMessage Leader::Decided() const {
  HostMessage hosts = HostMessage::array();
  for (const HostContact& one : contacts_) {
    hosts.push_back(
        {{"id", one.id}, {"address", one.address}, {"port", one.port}});
  }
  return {{"kind", "decided"},
          {"number", world_.number},
          {"hosts", std::move(hosts)},
          {"nodes", world_.nodes},
          {"port", world_.master_port},
          {"gentle", world_.gentle},
          {"left_out", roster_.left_out()},
          {"why", world_.why}};
}

void Leader::TellAll() {
  std::vector<std::string> world;
  for (int i = 0; i < world_.nodes; ++i) world.push_back(contacts_[i].id);
  FindContacts(world);
  server_->SendToAll(Decided());
}

// Of this world those who go on lead next, before those who leave too; who is
// gone isn't looked for.
void Leader::OrderForNextLeader(const Roster::World& next) {
  const auto nodes = contacts_.begin() + world_.nodes;
  std::vector<std::string> order = {id_};
  for (const bool goes_on : {true, false}) {
    for (auto one = contacts_.begin(); one != nodes; ++one) {
      const bool in_next = std::find(next.hosts.begin(), next.hosts.end(),
                                     one->id) != next.hosts.end();
      if (in_next == goes_on && server_->Find(one->id) != nullptr) {
        order.push_back(one->id);
      }
    }
  }
  world_.nodes = static_cast<int>(order.size());
  FindContacts(order);
}

void Leader::HandOver(const Roster::World& next) {
  OrderForNextLeader(next);
  HostMessage bye = Decided();
  bye["kind"] = "bye";
  // The leader before this one may have died, and its ranks with it.
  bye["gentle"] = next.gentle;
  server_->SendToAll(bye);
  ChangingHosts::World left;
  left.number = next.number;
  left.gentle = next.gentle;
  left.saves = next.saves;
  left.left_out = roster_.LeftOut(id_);
  left.why = next.why;
  world_ = left;
  server_->Close();
  // What remains are this host's ranks.
  ending_ = EndingWithout(world_);
}

void Leader::EndAll(const ChangingHosts::Ending& ending) {
  if (!ending_.text.empty() && !ending_.stops) return;
  ending_ = ending;
  server_->SendToAll(EndMessage(ending));
}

}  // namespace capstan
