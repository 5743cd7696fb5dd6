// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/members.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/launch/rank_info.h"
#include "cluster/meet/listen.h"
#include "cluster/meet/meeting_file.h"
#include "cluster/members/host_server.h"
#include "cluster/members/wire.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// For the handshake with a host that has accepted the connection.
constexpr seconds kGreetLimit{5};
constexpr milliseconds kPause{100};
// How long the next leader may not answer, or may not know yet that it leads.
constexpr seconds kSilentLeader{3};
constexpr seconds kLateLeader{30};

// A host, as the others know it.
struct Contact {
  std::string id;
  std::string address;  // numeric
  int port = 0;
};

std::string NameIn(const std::string& id) { return id.substr(0, id.find('/')); }

// The value of a key of a message, or `otherwise`.
template <typename T>
T Field(const HostMessage& message, const char* key, T otherwise = T()) {
  const auto found = message.find(key);
  if (found == message.end()) return otherwise;
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    return otherwise;
  }
}

// As cluster/comm tells hosts apart.
std::string OwnName() {
  const char* const id = std::getenv("CAPSTAN_HOST_ID");
  std::string name = id != nullptr && *id != '\0' ? id : HostName();
  std::replace(name.begin(), name.end(), '/', '_');
  return name.substr(0, kMaxNameBytes);
}

class Members final : public ChangingHosts {
 public:
  explicit Members(const MembersOptions& options)
      : options_(options),
        key_(options.run_key + "-hosts"),
        id_(absl::StrCat(OwnName(), "/", getpid(), "/",
                         RandomToken().substr(0, 8))),
        file_path_(options.folder.empty()
                       ? ""
                       : MeetingFilePath(options.folder, key_)),
        seeking_since_(MeetingClock::now()) {}

  absl::Status SetUp();

  int fd() const override { return epoll_.get(); }
  void CloseInChild() override;
  void Handle() override;
  const World& world() const override { return world_; }
  const Ending& ending() const override { return ending_; }
  int TakeListening() override { return rank0_listening_.Release(); }
  std::string Waits() const override;
  void Entered(int64_t world) override;
  void Progressed(int64_t world) override;
  void Died(int64_t world, int64_t step, const std::string& how,
            bool themselves) override;
  void Failed(int64_t world, const std::string& error) override;
  void Leave() override;
  void LeaveOut(int64_t world, const std::string& hosts) override;
  void Finish(int code) override;

 private:
  void SetTimer();

  // Looking for the leader.
  void Seek(Deadline now);
  void SeekNextLeader(Deadline now);
  std::vector<SocketAddress> LeaderAddresses() const;
  bool TryToFollow(const SocketAddress& address);
  bool TryToLead();

  // The leader's.
  void Lead(bool gentle);
  void Publish();
  void HandleMessage(HostServer::Peer* peer, const HostMessage& message);
  void Enrol(HostServer::Peer* peer, const HostMessage& message);
  void Refuse(HostServer::Peer* peer, const std::string& why);
  void Decide(Deadline now);
  void Begin(const Roster::World& next);
  void DropThoseWhoDontEnter(Deadline now);
  // The world's hosts, then the spares.
  void FindContacts(const std::vector<std::string>& world);
  Contact ContactOf(const std::string& id);
  HostMessage Decided() const;
  void TellAll();
  // To the first of the other hosts of `next`.
  void HandOver(const Roster::World& next);
  void EndAll(const Ending& ending);

  // A member's.
  void HandleLeader();
  void HandleDecided(const HostMessage& message);
  void TakeContacts(const HostMessage& message);
  void GoElsewhere(const HostMessage& message);
  void LoseLeader(bool gentle);
  void Report(const HostMessage& message);
  void EndWith(const std::string& text) {
    if (ending_.text.empty()) ending_ = {text, /*failed=*/true};
  }

  const MembersOptions options_;
  const std::string key_;
  const std::string id_;
  const std::string file_path_;
  SocketFd epoll_;
  SocketFd timer_;
  std::unique_ptr<HostServer> server_;
  SocketFd rank0_listening_;
  World world_;
  // The world's hosts in its order, of which the first leads, then the spares,
  // which lead when all of these are gone.
  std::vector<Contact> contacts_;
  Ending ending_;
  bool leaving_ = false;

  // Seeking, if neither a leader is known nor is this one.
  Deadline seeking_since_;
  Deadline next_try_;
  std::string problem_;     // of the last try
  size_t next_leader_ = 0;  // in contacts_; 0: as when the run began
  bool gentle_ = false;     // the last leader left with notice
  bool elsewhere_ = false;  // the next one answers, and doesn't lead yet
  absl::optional<Deadline> late_since_;
  std::set<std::string> left_out_;  // names, as the last leader had them

  std::unique_ptr<HostConnection> leader_;
  std::unique_ptr<Roster> roster_;  // null unless this is the leader
  std::unique_ptr<MeetingFile> file_;
  std::set<std::string> entered_;  // whose ranks of the world have started
  absl::optional<Deadline> enter_by_;
  int64_t progressed_in_ = 0;
  bool finishing_ = false;  // some ranks of the world have ended in order
};

absl::Status Members::SetUp() {
  epoll_ = SocketFd(epoll_create1(EPOLL_CLOEXEC));
  timer_ =
      SocketFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !timer_.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("can't watch the run's hosts: ", strerror(errno)));
  }
  server_ = std::make_unique<HostServer>(epoll_.get(), key_, options_.token);
  WatchSocket(epoll_.get(), timer_.get());
  next_try_ = MeetingClock::now();
  SetTimer();
  return absl::OkStatus();
}

void Members::CloseInChild() {
  // Open in a rank, they would outlive this process.
  server_->CloseInChild();
  if (leader_ != nullptr) close(leader_->fd());
  close(timer_.get());
  close(epoll_.get());
}

void Members::SetTimer() {
  Deadline next = server_->next_event();
  if (roster_ != nullptr) {
    next = std::min(next, roster_->next_event());
    next = std::min(next, enter_by_.value_or(Deadline::max()));
  } else if (leader_ == nullptr && ending_.text.empty()) {
    next = std::min(next, next_try_);
  }
  itimerspec spec = {};
  if (next != Deadline::max()) {
    const int64_t ns = std::max<int64_t>(
        1, std::chrono::duration_cast<std::chrono::nanoseconds>(
               next - MeetingClock::now())
               .count());
    spec.it_value.tv_sec = ns / 1000000000;
    spec.it_value.tv_nsec = ns % 1000000000;
  }
  timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Members::Handle() {
  epoll_event events[64];
  const int count = epoll_wait(epoll_.get(), events, 64, 0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd == timer_.get()) {
      uint64_t times = 0;
      if (read(fd, &times, sizeof(times)) < 0) continue;
    } else if (leader_ != nullptr && fd == leader_->fd()) {
      HandleLeader();
    } else {
      server_->Handle(
          fd, [this](HostServer::Peer* peer, const HostMessage& message) {
            HandleMessage(peer, message);
          });
    }
  }
  const Deadline now = MeetingClock::now();
  for (const auto& [id, silent] : server_->TakeLost(now)) {
    if (roster_ != nullptr && !finishing_) roster_->Lost(id, now, silent);
  }
  if (roster_ == nullptr && leader_ == nullptr) Seek(now);
  if (roster_ != nullptr) Decide(now);
  server_->WatchOutput();
  SetTimer();
}

// Seeking.

std::string Members::Waits() const {
  if (roster_ != nullptr) {
    return absl::StrCat("waiting for more hosts at ",
                        server_->address().text());
  }
  if (leader_ != nullptr) {
    return world_.number == 0
               ? "waiting for more hosts"
               : "this host is a spare: it takes part once the run's world "
                 "changes";
  }
  return absl::StrCat("looking for the run's hosts at ", options_.host, ":",
                      options_.port,
                      problem_.empty() ? "" : absl::StrCat(": ", problem_));
}

std::vector<SocketAddress> Members::LeaderAddresses() const {
  std::vector<SocketAddress> addresses;
  if (!file_path_.empty()) {
    const absl::StatusOr<MeetingPlace> place = ReadMeetingPlace(file_path_);
    for (const std::string& host :
         place.ok() ? place->addresses : std::vector<std::string>()) {
      const auto address = SocketAddress::Parse(host, place->port);
      if (address.has_value()) addresses.push_back(*address);
    }
  }
  const auto told = Resolve(options_.host, options_.port);
  if (told.ok()) addresses.insert(addresses.end(), told->begin(), told->end());
  return addresses;
}

void Members::Seek(Deadline now) {
  if (!ending_.text.empty() || now < next_try_) return;
  next_try_ = now + kPause;
  if (now - seeking_since_ > options_.patience) {
    return EndWith(absl::StrCat(
        "no host of the run was found at ", options_.host, ":", options_.port,
        " in ", options_.patience / seconds(1), " s: ", problem_));
  }
  if (next_leader_ > 0 && next_leader_ < contacts_.size()) {
    return SeekNextLeader(now);
  }
  problem_.clear();
  for (const SocketAddress& address : LeaderAddresses()) {
    if (TryToFollow(address)) return;
  }
  if (TryToLead()) Lead(/*gentle=*/false);
}

// In the order that all hosts know.
void Members::SeekNextLeader(Deadline now) {
  const Contact& next = contacts_[next_leader_];
  if (!late_since_.has_value()) {
    late_since_ = now;
    elsewhere_ = false;
    // Only the link may have been cut, and another host may lead already.
    const auto last =
        SocketAddress::Parse(contacts_.front().address, contacts_.front().port);
    if (!gentle_ && next_leader_ == 1 && last.has_value() &&
        TryToFollow(*last)) {
      return;
    }
  }
  if (next.id == id_) return Lead(gentle_);
  const auto address = SocketAddress::Parse(next.address, next.port);
  if (address.has_value() && TryToFollow(*address)) return;
  if (MeetingClock::now() - *late_since_ <
      (elsewhere_ ? kLateLeader : kSilentLeader)) {
    return;
  }
  ++next_leader_;
  late_since_.reset();
}

bool Members::TryToFollow(const SocketAddress& address) {
  auto connection =
      Greet(address, key_, options_.token, MeetingClock::now() + kGreetLimit);
  if (!connection.ok()) {
    problem_ =
        absl::StrCat(address.text(), ": ", connection.status().message());
    return false;
  }
  leader_ = *std::move(connection);
  NoticeSilentHost(leader_->fd());
  WatchSocket(epoll_.get(), leader_->fd());
  if (!server_->listens()) {
    SocketAddress own = SocketAddress::OwnEnd(leader_->fd());
    own.set_port(0);
    absl::StatusOr<SocketFd> listening = ListenAt(&own);
    if (!listening.ok()) {
      EndWith(std::string(listening.status().message()));
      return true;
    }
    server_->Listen(*std::move(listening));
  }
  leader_->Send({{"kind", "enrol"},
                 {"id", id_},
                 {"port", server_->address().port()},
                 {"ranks", options_.roster.ranks_per_host},
                 {"digest", options_.digest},
                 {"number", world_.number}});
  if (leaving_) leader_->Send({{"kind", "leaving"}});
  return true;
}

// Listens at the address that all are told, if it is this host's.
bool Members::TryToLead() {
  const auto told = Resolve(options_.host, options_.port);
  if (!told.ok()) {
    problem_ = std::string(told.status().message());
    return false;
  }
  const std::vector<InterfaceAddress> own = InterfaceAddresses();
  const bool here =
      std::any_of(told->begin(), told->end(), [&](const SocketAddress& one) {
        return one.IsLoopback() ||
               std::any_of(own.begin(), own.end(), [&](const auto& mine) {
                 return mine.address.SameHost(one);
               });
      });
  if (!here) return false;
  RankInfo info;
  // Hosts of one machine, by loopback.
  info.nodes =
      std::all_of(told->begin(), told->end(),
                  [](const SocketAddress& one) { return one.IsLoopback(); })
          ? 1
          : 2;
  info.master_addr = options_.host;
  info.master_port = options_.port;
  info.interface = options_.interface;
  absl::StatusOr<Listening> listening =
      ListenForRanks(info, MeetingClock::now());
  if (!listening.ok()) {
    absl::StrAppend(&problem_, problem_.empty() ? "" : "; ",
                    listening.status().message());
    return false;
  }
  for (SocketFd& fd : listening->sockets) server_->Listen(std::move(fd));
  return true;
}

// The leader.

void Members::Lead(bool gentle) {
  const Deadline now = MeetingClock::now();
  roster_ = std::make_unique<Roster>(options_.roster, now);
  roster_->set_left_out(left_out_);
  if (world_.number > 0) {
    // Those between the last leader and this host are gone.
    Roster::World before;
    before.number = world_.number;
    before.hosts.push_back(contacts_.front().id);
    const auto nodes = static_cast<size_t>(world_.nodes);
    for (size_t i = next_leader_; i < nodes; ++i) {
      before.hosts.push_back(contacts_[i].id);
    }
    roster_->TakeOver(std::move(before), gentle, now);
    TryToLead();
  }
  roster_->Came(id_, now);
  if (leaving_) roster_->Leaving(id_, now);
  server_->ForEach(
      [&](HostServer::Peer* peer) { roster_->Came(peer->id, now); });
  Publish();
}

void Members::Publish() {
  if (file_path_.empty()) return;
  MeetingPlace place;
  place.port = server_->address().port();
  place.pid = getpid();
  place.host = HostName();
  place.addresses = {server_->address().host()};
  absl::StatusOr<std::unique_ptr<MeetingFile>> file =
      MeetingFile::Publish(file_path_, place);
  // Others find it at the address that they are told.
  if (file.ok()) file_ = *std::move(file);
}

void Members::HandleMessage(HostServer::Peer* peer,
                            const HostMessage& message) {
  const auto kind = Field<std::string>(message, "kind");
  if (kind == "enrol") return Enrol(peer, message);
  if (roster_ == nullptr || peer->id.empty()) return peer->connection->Close();
  const Deadline now = MeetingClock::now();
  const auto number = Field<int64_t>(message, "world");
  const auto text = Field<std::string>(message, "text");
  if (kind == "died") {
    if (finishing_ && number == world_.number) {
      return EndAll({absl::StrCat("ranks of host ", NameIn(peer->id), " ", text,
                                  " when others had finished"),
                     /*failed=*/true});
    }
    roster_->Died(peer->id, number, Field<int64_t>(message, "step", -1), text,
                  Field<bool>(message, "themselves"), now);
  } else if (kind == "failed") {
    if (!roster_->Failed(peer->id, number, text, now)) {
      EndAll({absl::StrCat("host ", NameIn(peer->id), ": ", text),
              /*failed=*/true});
    }
  } else if (kind == "entered" && number == world_.number) {
    entered_.insert(peer->id);
  } else if (kind == "leaving") {
    roster_->Leaving(peer->id, now);
  } else if (kind == "leave_out") {
    LeaveOut(number, text);
  } else if (kind == "finished" && number == world_.number) {
    finishing_ = true;
  }
}

void Members::Refuse(HostServer::Peer* peer, const std::string& why) {
  peer->connection->Send(
      {{"kind", "end"}, {"failed", true}, {"code", 1}, {"text", why}});
  peer->connection->Close();
}

void Members::Enrol(HostServer::Peer* peer, const HostMessage& message) {
  HostConnection& connection = *peer->connection;
  const auto id = Field<std::string>(message, "id");
  if (id.empty() || id.size() > 2 * kMaxNameBytes) return connection.Close();
  if (Field<std::string>(message, "digest") != options_.digest) {
    return Refuse(peer,
                  "this host's config isn't that of the run's other hosts: "
                  "start the same command with the same files on all");
  }
  const int ranks = Field<int>(message, "ranks");
  if (ranks != options_.roster.ranks_per_host) {
    return Refuse(peer, absl::StrCat("this host has ", ranks,
                                     " ranks, and the run's other hosts have ",
                                     options_.roster.ranks_per_host,
                                     ": set launch.processes"));
  }
  server_->Enrol(peer, id, Field<int>(message, "port"));
  if (roster_ == nullptr) {
    // It may have come to the next leader, which doesn't know yet.
    if (leader_ == nullptr) return;
    const SocketAddress leader = SocketAddress::OtherEnd(leader_->fd());
    connection.Send({{"kind", "elsewhere"},
                     {"address", leader.host()},
                     {"port", leader.port()}});
    return connection.Close();
  }
  roster_->Came(id, MeetingClock::now(), Field<int64_t>(message, "number"));
  if (roster_->LeftOut(id)) {
    return Refuse(peer, absl::StrCat("host ", NameIn(id),
                                     " has been left out of the run"));
  }
  if (world_.number > 0) TellAll();
}

void Members::Decide(Deadline now) {
  // Ranks that stop may die before they have.
  if (finishing_ || (!ending_.text.empty() && !ending_.stops)) return;
  DropThoseWhoDontEnter(now);
  const absl::optional<Roster::World> next = roster_->Next(now);
  if (next.has_value()) {
    if (next->hosts.front() != id_) return HandOver(*next);
    Begin(*next);
  }
  const absl::optional<Roster::Ending> ending = roster_->End(now);
  if (ending.has_value()) {
    if (ending->stops) roster_->StopAll();
    EndAll({ending->text, /*failed=*/true, ending->stops});
  }
}

// A launcher that is stopped keeps its connections.
void Members::DropThoseWhoDontEnter(Deadline now) {
  if (!enter_by_.has_value() || now < *enter_by_) return;
  enter_by_.reset();
  server_->ForEach([&](HostServer::Peer* peer) {
    const bool in_world =
        std::any_of(contacts_.begin(), contacts_.begin() + world_.nodes,
                    [&](const Contact& one) { return one.id == peer->id; });
    if (!in_world || entered_.count(peer->id) > 0) return;
    roster_->Lost(peer->id, now);
    peer->connection->Close();
  });
}

void Members::Begin(const Roster::World& next) {
  // On the address that the others use.
  SocketAddress address = server_->address();
  address.set_port(0);
  absl::StatusOr<SocketFd> listening = ListenAt(&address);
  if (!listening.ok()) {
    return EndAll({std::string(listening.status().message()), /*failed=*/true});
  }
  rank0_listening_ = *std::move(listening);
  world_ = World();
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

Contact Members::ContactOf(const std::string& id) {
  if (id == id_) {
    return {id, server_->address().host(), server_->address().port()};
  }
  const HostServer::Peer* const peer = server_->Find(id);
  if (peer == nullptr) return {id, "", 0};
  return {id, SocketAddress::OtherEnd(peer->connection->fd()).host(),
          peer->port};
}

void Members::FindContacts(const std::vector<std::string>& world) {
  contacts_.clear();
  for (const std::string& id : world) contacts_.push_back(ContactOf(id));
  server_->ForEach([&](HostServer::Peer* peer) {
    const bool there =
        std::find(world.begin(), world.end(), peer->id) != world.end();
    if (!there && !roster_->LeftOut(peer->id)) {
      contacts_.push_back(ContactOf(peer->id));
    }
  });
}

HostMessage Members::Decided() const {
  HostMessage hosts = HostMessage::array();
  for (const Contact& one : contacts_) {
    hosts.push_back(
        {{"id", one.id}, {"address", one.address}, {"port", one.port}});
  }
  return {{"kind", "decided"},
          {"number", world_.number},
          {"hosts", std::move(hosts)},
          {"nodes", world_.nodes},
          {"port", world_.master_port},
          {"gentle", world_.gentle},
          {"left_out", roster_->left_out()},
          {"why", world_.why}};
}

void Members::TellAll() {
  std::vector<std::string> world;
  for (int i = 0; i < world_.nodes; ++i) world.push_back(contacts_[i].id);
  FindContacts(world);
  const HostMessage decided = Decided();
  server_->ForEach(
      [&](HostServer::Peer* peer) { peer->connection->Send(decided); });
}

void Members::HandOver(const Roster::World& next) {
  HostMessage bye = Decided();
  bye["kind"] = "bye";
  server_->ForEach(
      [&](HostServer::Peer* peer) { peer->connection->Send(bye); });
  World left;
  left.number = next.number;
  left.gentle = next.gentle;
  left.saves = next.saves;
  left.left_out = roster_->LeftOut(id_);
  left.why = next.why;
  world_ = left;
  roster_.reset();
  file_.reset();
  server_->Close();
  // What remains are this host's ranks.
  ending_ = {left.left_out ? next.why : "this host has left the run",
             /*failed=*/left.left_out, /*stops=*/false,
             /*code=*/left.left_out ? 1 : 0};
}

void Members::EndAll(const Ending& ending) {
  if (!ending_.text.empty() && !ending_.stops) return;
  ending_ = ending;
  server_->ForEach([&](HostServer::Peer* peer) {
    peer->connection->Send({{"kind", "end"},
                            {"text", ending.text},
                            {"failed", ending.failed},
                            {"stops", ending.stops},
                            {"code", ending.code}});
  });
}

// A member.

void Members::HandleLeader() {
  leader_->Receive();
  while (leader_ != nullptr) {
    const absl::optional<HostMessage> message = leader_->NextMessage();
    if (!message.has_value()) break;
    const auto kind = Field<std::string>(*message, "kind");
    if (kind == "decided") {
      HandleDecided(*message);
    } else if (kind == "end") {
      ending_ = {Field<std::string>(*message, "text", "the run has ended"),
                 Field<bool>(*message, "failed"),
                 Field<bool>(*message, "stops"), Field<int>(*message, "code")};
    } else if (kind == "bye") {
      TakeContacts(*message);
      world_.number =
          std::max(world_.number, Field<int64_t>(*message, "number"));
      return LoseLeader(/*gentle=*/true);
    } else if (kind == "elsewhere") {
      return GoElsewhere(*message);
    }
  }
  if (leader_ != nullptr && !leader_->alive()) LoseLeader(/*gentle=*/false);
}

void Members::GoElsewhere(const HostMessage& message) {
  const SocketAddress asked = SocketAddress::OtherEnd(leader_->fd());
  leader_.reset();
  elsewhere_ = true;
  const auto told = SocketAddress::Parse(Field<std::string>(message, "address"),
                                         Field<int>(message, "port"));
  problem_ = absl::StrCat(asked.text(), ": it doesn't lead the run's hosts");
  const bool same = told.has_value() && told->text() == asked.text();
  if (told.has_value() && !same) TryToFollow(*told);
}

void Members::TakeContacts(const HostMessage& message) {
  contacts_.clear();
  for (const HostMessage& one : Field<HostMessage>(message, "hosts")) {
    contacts_.push_back({Field<std::string>(one, "id"),
                         Field<std::string>(one, "address"),
                         Field<int>(one, "port")});
  }
  left_out_ = Field<std::set<std::string>>(message, "left_out");
  world_.nodes = std::min(Field<int>(message, "nodes"),
                          static_cast<int>(contacts_.size()));
}

void Members::HandleDecided(const HostMessage& message) {
  const auto number = Field<int64_t>(message, "number");
  if (number < world_.number) return;
  seeking_since_ = MeetingClock::now();
  TakeContacts(message);
  // Only others have come to wait.
  if (number == world_.number) return;
  World world;
  world.number = number;
  world.nodes = world_.nodes;
  for (int i = 0; i < world.nodes; ++i) {
    if (contacts_[i].id == id_) world.node_rank = i;
    world.addresses.push_back(contacts_[i].address);
  }
  world.master_addr = SocketAddress::OtherEnd(leader_->fd()).host();
  world.master_port = Field<int>(message, "port");
  world.gentle = Field<bool>(message, "gentle");
  world.left_out = left_out_.count(NameIn(id_)) > 0;
  world.why = Field<std::string>(message, "why");
  world_ = std::move(world);
  if (world_.node_rank >= 0 || (!leaving_ && !world_.left_out)) return;
  ending_ = {world_.left_out ? world_.why : "this host has left the run",
             /*failed=*/world_.left_out, /*stops=*/false,
             /*code=*/world_.left_out ? 1 : 0};
}

void Members::LoseLeader(bool gentle) {
  leader_.reset();
  if (!ending_.text.empty()) return;
  gentle_ = gentle;
  next_leader_ = world_.number > 0 ? 1 : 0;
  late_since_.reset();
  problem_.clear();
  seeking_since_ = next_try_ = MeetingClock::now();
}

void Members::Report(const HostMessage& message) {
  // Without a leader, the next one makes a new world anyway.
  if (leader_ != nullptr) leader_->Send(message);
}

void Members::Entered(int64_t world) {
  if (roster_ == nullptr) {
    return Report({{"kind", "entered"}, {"world", world}});
  }
  enter_by_ = MeetingClock::now() + options_.roster.patience;
  SetTimer();
}

void Members::Progressed(int64_t world) {
  if (roster_ == nullptr || progressed_in_ == world) return;
  progressed_in_ = world;
  roster_->Progressed();
  Decide(MeetingClock::now());
  SetTimer();
}

void Members::Died(int64_t world, int64_t step, const std::string& how,
                   bool themselves) {
  if (roster_ == nullptr) {
    return Report({{"kind", "died"},
                   {"world", world},
                   {"step", step},
                   {"text", how},
                   {"themselves", themselves}});
  }
  const Deadline now = MeetingClock::now();
  if (finishing_) {
    return EndAll({absl::StrCat("ranks of host ", NameIn(id_), " ", how,
                                " when others had finished"),
                   /*failed=*/true});
  }
  roster_->Died(id_, world, step, how, themselves, now);
  Decide(now);
  SetTimer();
}

void Members::Failed(int64_t world, const std::string& error) {
  if (roster_ != nullptr) {
    return EndAll(
        {absl::StrCat("host ", NameIn(id_), ": ", error), /*failed=*/true});
  }
  Report({{"kind", "failed"}, {"world", world}, {"text", error}});
}

void Members::Leave() {
  if (std::exchange(leaving_, true)) return;
  if (roster_ == nullptr) return Report({{"kind", "leaving"}});
  roster_->Leaving(id_, MeetingClock::now());
  Decide(MeetingClock::now());
  SetTimer();
}

void Members::LeaveOut(int64_t world, const std::string& hosts) {
  if (roster_ == nullptr) {
    return Report({{"kind", "leave_out"}, {"world", world}, {"text", hosts}});
  }
  if (world != world_.number) return;
  for (const absl::string_view text : absl::StrSplit(hosts, ',')) {
    size_t host = 0;
    if (!absl::SimpleAtoi(text, &host) || host >= contacts_.size()) continue;
    const std::string& id = contacts_[host].id;
    const std::string why = absl::StrCat(
        "host ", NameIn(id), " is left out, as the run's warnings say why");
    roster_->LeaveOut(id, why, MeetingClock::now());
  }
}

void Members::Finish(int code) {
  if (roster_ == nullptr) {
    return Report({{"kind", "finished"}, {"world", world_.number}});
  }
  finishing_ = true;
  EndAll({"the run has ended", /*failed=*/false, /*stops=*/false, code});
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChangingHosts>> JoinHosts(
    const MembersOptions& options) {
  auto members = std::make_unique<Members>(options);
  CAPSTAN_RETURN_IF_ERROR(members->SetUp());
  return members;
}

}  // namespace capstan
