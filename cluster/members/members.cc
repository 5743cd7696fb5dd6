// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/members.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/launch/launchers.h"
#include "cluster/launch/rank_info.h"
#include "cluster/meet/listen.h"
#include "cluster/meet/meeting_file.h"
#include "cluster/members/wire.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How long a host may not answer: its launcher may be busy or stopped for
// longer, but its network isn't.
constexpr seconds kSilence{10};
// For one try of an address, and for the handshake.
constexpr seconds kConnectLimit{1};
constexpr seconds kGreetLimit{5};
constexpr milliseconds kPause{100};
// How long a host that should lead may not know it yet.
constexpr seconds kLateLeader{30};
constexpr size_t kStrangers = 64;
constexpr char kNoLeader[] = ": it doesn't lead the run's hosts";

// A host of the world, as the others know it.
struct Contact {
  std::string id;
  std::string address;  // numeric
  int port = 0;
};

// A connection that another launcher has made to this one.
struct Peer {
  std::unique_ptr<HostConnection> connection;
  HostHandshake handshake;
  bool proved = false;
  std::string id;  // once it has enrolled
  int port = 0;    // where it listens
  Deadline until;  // of the handshake
};

// Also with output under way: what launchers send always has room at the other
// end, even if that is stopped.
void NoticeSilentHost(int fd) {
  NoticeSilence(fd, kSilence);
  const auto ms = static_cast<unsigned>(milliseconds(kSilence).count());
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

std::string NameIn(const std::string& id) { return id.substr(0, id.find('/')); }

// The value of a key of a message, or nothing.
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

class Members final : public ChangingHosts {
 public:
  explicit Members(const MembersOptions& options)
      : options_(options),
        key_(options.run_key + "-hosts"),
        id_(absl::StrCat(HostName(), "/", getpid(), "/",
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
  void Progressed(int64_t world) override;
  void Died(int64_t world, int64_t step, const std::string& how) override;
  void Failed(int64_t world, const std::string& error) override;
  void Leave() override;
  void LeaveOut(int64_t world, const std::string& hosts) override;
  void Finish(int code) override;

 private:
  void Watch(int fd, bool output = false);
  void SetTimer();

  // Looking for the leader.
  void Seek(Deadline now);
  std::vector<SocketAddress> LeaderAddresses() const;
  bool TryToFollow(const SocketAddress& address);
  bool TryToLead();

  // The leader's.
  void Lead(bool gentle);
  void Publish();
  void Accept(int listening_fd);
  void HandlePeer(Peer* peer);
  void HandleMessage(Peer* peer, const HostMessage& message);
  void Enrol(Peer* peer, const HostMessage& message);
  void DropDead();
  void Decide(Deadline now);
  void Begin(const Roster::World& next);
  void Tell(Peer* peer) const;
  // To the first of the other hosts of `next`.
  void HandOver(const Roster::World& next);
  void EndAll(const Ending& ending);
  Contact ContactOf(const std::string& id) const;

  // A member's.
  void HandleLeader();
  void HandleDecided(const HostMessage& message);
  void GoElsewhere(const HostMessage& message);
  void LoseLeader(bool gentle);
  void Report(const HostMessage& message);
  void EndWith(const std::string& text) {
    if (ending_.text.empty()) ending_ = {text, /*stops=*/false, /*code=*/1};
  }

  const MembersOptions options_;
  const std::string key_;
  const std::string id_;
  const std::string file_path_;
  SocketFd epoll_;
  SocketFd timer_;
  std::vector<SocketFd> listening_;
  SocketAddress own_address_;  // of the first of them
  SocketFd rank0_listening_;
  World world_;
  std::vector<Contact> contacts_;  // the world's, in its order
  Ending ending_;
  bool leaving_ = false;

  // Seeking, if neither a leader is known nor is this one.
  Deadline seeking_since_;
  Deadline next_try_;
  std::string problem_;  // of the last try
  absl::optional<Deadline> late_since_;
  size_t next_leader_ = 0;  // in contacts_; 0: as when the run began
  bool gentle_ = false;     // the last leader left with notice
  int64_t progressed_in_ = 0;
  bool finishing_ = false;  // some ranks of the world have ended in order

  std::unique_ptr<HostConnection> leader_;
  std::unique_ptr<Roster> roster_;  // null unless this is the leader
  std::unique_ptr<MeetingFile> file_;
  std::map<int, Peer> peers_;  // by their sockets
};

absl::Status Members::SetUp() {
  epoll_ = SocketFd(epoll_create1(EPOLL_CLOEXEC));
  timer_ =
      SocketFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !timer_.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("can't watch the run's hosts: ", strerror(errno)));
  }
  Watch(timer_.get());
  next_try_ = MeetingClock::now();
  SetTimer();
  return absl::OkStatus();
}

void Members::CloseInChild() {
  // Open in a rank, they would outlive this process.
  for (const SocketFd& fd : listening_) close(fd.get());
  for (const auto& [fd, peer] : peers_) close(fd);
  if (leader_ != nullptr) close(leader_->fd());
  close(timer_.get());
  close(epoll_.get());
}

void Members::Watch(int fd, bool output) {
  epoll_event event = {};
  event.events = EPOLLIN | (output ? EPOLLOUT : 0);
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
}

void Members::SetTimer() {
  Deadline next = Deadline::max();
  if (roster_ != nullptr) {
    next = roster_->next_event();
  } else if (leader_ == nullptr && ending_.text.empty()) {
    next = next_try_;
  }
  for (const auto& [fd, peer] : peers_) {
    if (!peer.proved) next = std::min(next, peer.until);
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
    } else if (const auto peer = peers_.find(fd); peer != peers_.end()) {
      HandlePeer(&peer->second);
    } else {
      Accept(fd);
    }
  }
  const Deadline now = MeetingClock::now();
  DropDead();
  if (roster_ == nullptr && leader_ == nullptr) Seek(now);
  if (roster_ != nullptr) Decide(now);
  for (auto& [fd, peer] : peers_) Watch(fd, peer.connection->blocked());
  SetTimer();
}

// Seeking.

std::string Members::Waits() const {
  if (roster_ != nullptr) {
    return absl::StrCat("waiting for more hosts at ", own_address_.text());
  }
  if (leader_ != nullptr) {
    return world_.number == 0
               ? "waiting for more hosts"
               : "this host is a spare: the run has as many as it may";
  }
  return absl::StrCat("looking for the run's hosts at ", options_.host, ":",
                      options_.port,
                      problem_.empty() ? "" : absl::StrCat(": ", problem_));
}

std::vector<SocketAddress> Members::LeaderAddresses() const {
  std::vector<SocketAddress> addresses;
  const auto add = [&](const std::string& host, int port) {
    const auto address = SocketAddress::Parse(host, port);
    if (address.has_value()) addresses.push_back(*address);
  };
  if (!file_path_.empty()) {
    const absl::StatusOr<MeetingPlace> place = ReadMeetingPlace(file_path_);
    if (place.ok()) {
      for (const std::string& host : place->addresses) add(host, place->port);
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
  if (next_leader_ == 0 || next_leader_ >= contacts_.size()) {
    for (const SocketAddress& address : LeaderAddresses()) {
      if (TryToFollow(address)) return;
    }
    if (TryToLead()) Lead(/*gentle=*/false);
    return;
  }
  const Contact& next = contacts_[next_leader_];
  if (next.id == id_) return Lead(gentle_);
  const auto address = SocketAddress::Parse(next.address, next.port);
  if (!late_since_.has_value()) late_since_ = now;
  if (address.has_value() && TryToFollow(*address)) return;
  // One that answers and doesn't lead yet is asked for longer.
  const milliseconds limit = absl::StrContains(problem_, kNoLeader)
                                 ? milliseconds(kLateLeader)
                                 : 3 * milliseconds(kConnectLimit);
  if (MeetingClock::now() - *late_since_ < limit) return;
  ++next_leader_;
  late_since_.reset();
}

bool Members::TryToFollow(const SocketAddress& address) {
  const Deadline now = MeetingClock::now();
  auto connection = Greet(address, key_, options_.token, now + kGreetLimit);
  if (!connection.ok()) {
    problem_ =
        absl::StrCat(address.text(), ": ", connection.status().message());
    return false;
  }
  leader_ = *std::move(connection);
  NoticeSilentHost(leader_->fd());
  Watch(leader_->fd());
  if (listening_.empty()) {
    own_address_ = SocketAddress::OwnEnd(leader_->fd());
    own_address_.set_port(0);
    absl::StatusOr<SocketFd> listening = ListenAt(&own_address_);
    if (!listening.ok()) {
      EndWith(std::string(listening.status().message()));
      return true;
    }
    Watch(listening->get());
    listening_.push_back(*std::move(listening));
  }
  leader_->Send({{"kind", "enrol"},
                 {"id", id_},
                 {"port", own_address_.port()},
                 {"ranks", options_.roster.ranks_per_host},
                 {"digest", options_.digest}});
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
  const bool first = listening_.empty();
  if (first) own_address_ = listening->addresses.front();
  for (SocketFd& fd : listening->sockets) {
    Watch(fd.get());
    listening_.push_back(std::move(fd));
  }
  return true;
}

// The leader.

void Members::Lead(bool gentle) {
  const Deadline now = MeetingClock::now();
  Roster::Options options = options_.roster;
  roster_ = std::make_unique<Roster>(options, now);
  if (world_.number > 0) {
    // Those between the last leader and this host are gone.
    Roster::World before;
    before.number = world_.number;
    before.hosts.push_back(contacts_.front().id);
    for (size_t i = next_leader_; i < contacts_.size(); ++i) {
      before.hosts.push_back(contacts_[i].id);
    }
    roster_->TakeOver(std::move(before), gentle, now);
    TryToLead();
  }
  roster_->Came(id_, now);
  if (leaving_) roster_->Leaving(id_, now);
  for (auto& [fd, peer] : peers_) {
    if (!peer.id.empty()) roster_->Came(peer.id, now);
  }
  Publish();
}

void Members::Publish() {
  if (file_path_.empty()) return;
  MeetingPlace place;
  place.port = own_address_.port();
  place.pid = getpid();
  place.host = HostName();
  place.addresses = {own_address_.host()};
  absl::StatusOr<std::unique_ptr<MeetingFile>> file =
      MeetingFile::Publish(file_path_, place);
  // Others find it at the address that they are told.
  if (file.ok()) file_ = *std::move(file);
}

void Members::Accept(int listening_fd) {
  SocketFd fd(
      accept4(listening_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return;
  const auto strangers =
      std::count_if(peers_.begin(), peers_.end(),
                    [](const auto& one) { return !one.second.proved; });
  if (strangers >= static_cast<int64_t>(kStrangers)) return;
  SetUpConnection(fd.get());
  NoticeSilentHost(fd.get());
  Watch(fd.get());
  const int number = fd.get();
  Peer& peer = peers_[number];
  peer.connection = std::make_unique<HostConnection>(std::move(fd));
  peer.until = MeetingClock::now() + kSilence;
}

void Members::HandlePeer(Peer* peer) {
  HostConnection& connection = *peer->connection;
  connection.Flush();
  connection.Receive();
  while (true) {
    if (!peer->proved) {
      const absl::optional<std::string> payload = connection.Next();
      if (!payload.has_value()) return;
      peer->proved =
          peer->handshake.Answer(*payload, key_, options_.token, &connection);
      continue;
    }
    const absl::optional<HostMessage> message = connection.NextMessage();
    if (!message.has_value()) return;
    HandleMessage(peer, *message);
  }
}

void Members::HandleMessage(Peer* peer, const HostMessage& message) {
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
                     /*stops=*/false, /*code=*/1});
    }
    roster_->Died(peer->id, number, Field<int64_t>(message, "step", -1), text,
                  now);
  } else if (kind == "failed") {
    if (!roster_->Failed(peer->id, number, text, now)) {
      EndAll({absl::StrCat("host ", NameIn(peer->id), ": ", text),
              /*stops=*/false, /*code=*/1});
    }
  } else if (kind == "leaving") {
    roster_->Leaving(peer->id, now);
  } else if (kind == "leave_out") {
    LeaveOut(number, text);
  } else if (kind == "finished" && number == world_.number) {
    finishing_ = true;
  }
}

void Members::Enrol(Peer* peer, const HostMessage& message) {
  HostConnection& connection = *peer->connection;
  const auto id = Field<std::string>(message, "id");
  if (id.empty() || id.size() > 2 * kMaxNameBytes) return connection.Close();
  if (Field<std::string>(message, "digest") != options_.digest) {
    connection.Send({{"kind", "end"},
                     {"code", 1},
                     {"text",
                      "this host's config isn't that of the run's other hosts: "
                      "start the same command with the same files on all"}});
    return connection.Close();
  }
  const int ranks = Field<int>(message, "ranks");
  if (ranks != options_.roster.ranks_per_host) {
    connection.Send(
        {{"kind", "end"},
         {"code", 1},
         {"text", absl::StrCat("this host has ", ranks,
                               " ranks, and the run's other hosts have ",
                               options_.roster.ranks_per_host,
                               ": set launch.processes")}});
    return connection.Close();
  }
  peer->id = id;
  peer->port = Field<int>(message, "port");
  if (roster_ != nullptr) return roster_->Came(id, MeetingClock::now());
  // It may have come to the next leader, which doesn't know yet.
  if (leader_ != nullptr) {
    const SocketAddress leader = SocketAddress::OtherEnd(leader_->fd());
    connection.Send({{"kind", "elsewhere"},
                     {"address", leader.host()},
                     {"port", leader.port()}});
    connection.Close();
  }
}

void Members::DropDead() {
  const Deadline now = MeetingClock::now();
  for (auto next = peers_.begin(); next != peers_.end();) {
    const Peer& peer = next->second;
    const bool late = !peer.proved && now >= peer.until;
    if (peer.connection->alive() && !late) {
      ++next;
      continue;
    }
    const std::string id = peer.id;
    next = peers_.erase(next);
    if (roster_ != nullptr && !id.empty() && !finishing_) {
      roster_->Lost(id, now);
    }
  }
}

void Members::Decide(Deadline now) {
  if (finishing_ || !ending_.text.empty()) return;
  const absl::optional<Roster::World> next = roster_->Next(now);
  if (next.has_value()) {
    if (next->hosts.front() != id_) return HandOver(*next);
    Begin(*next);
  }
  const absl::optional<Roster::Ending> ending = roster_->End(now);
  if (ending.has_value()) EndAll({ending->text, ending->stops, /*code=*/1});
}

void Members::Begin(const Roster::World& next) {
  // On the address that the others use.
  SocketAddress address = own_address_;
  address.set_port(0);
  absl::StatusOr<SocketFd> listening = ListenAt(&address);
  if (!listening.ok()) {
    return EndAll({std::string(listening.status().message())});
  }
  rank0_listening_ = *std::move(listening);
  std::vector<Contact> contacts;
  for (const std::string& id : next.hosts) contacts.push_back(ContactOf(id));
  contacts_ = std::move(contacts);
  world_ = World();
  world_.number = next.number;
  world_.node_rank = 0;
  world_.nodes = static_cast<int>(next.hosts.size());
  world_.master_addr = address.host();
  world_.master_port = address.port();
  for (const Contact& one : contacts_) world_.addresses.push_back(one.address);
  world_.gentle = next.gentle;
  world_.saves = next.several_go;
  world_.why = next.why;
  for (auto& [fd, peer] : peers_) {
    if (!peer.id.empty()) Tell(&peer);
  }
}

Contact Members::ContactOf(const std::string& id) const {
  if (id == id_) return {id, own_address_.host(), own_address_.port()};
  for (const auto& [fd, peer] : peers_) {
    if (peer.id != id) continue;
    return {id, SocketAddress::OtherEnd(fd).host(), peer.port};
  }
  return {id, "", 0};
}

void Members::Tell(Peer* peer) const {
  HostMessage hosts = HostMessage::array();
  for (const Contact& one : contacts_) {
    hosts.push_back(
        {{"id", one.id}, {"address", one.address}, {"port", one.port}});
  }
  peer->connection->Send({{"kind", "decided"},
                          {"number", world_.number},
                          {"hosts", std::move(hosts)},
                          {"port", world_.master_port},
                          {"gentle", world_.gentle},
                          {"left_out", roster_->LeftOut(peer->id)},
                          {"why", world_.why}});
}

void Members::HandOver(const Roster::World& next) {
  for (auto& [fd, peer] : peers_) peer.connection->Send({{"kind", "bye"}});
  World left;
  left.number = next.number;
  left.gentle = next.gentle;
  left.saves = next.several_go;
  left.left_out = roster_->LeftOut(id_);
  left.why = next.why;
  world_ = left;
  roster_.reset();
  file_.reset();
  peers_.clear();
  listening_.clear();
  // What remains are this host's ranks.
  ending_ = {left.left_out ? next.why : "this host has left the run",
             /*stops=*/false, left.left_out ? 1 : 0};
}

void Members::EndAll(const Ending& ending) {
  if (!ending_.text.empty()) return;
  ending_ = ending;
  for (auto& [fd, peer] : peers_) {
    peer.connection->Send({{"kind", "end"},
                           {"text", ending.text},
                           {"stops", ending.stops},
                           {"code", ending.code}});
  }
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
                 Field<bool>(*message, "stops"),
                 Field<int>(*message, "code", 1)};
    } else if (kind == "bye") {
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
  const auto told = SocketAddress::Parse(Field<std::string>(message, "address"),
                                         Field<int>(message, "port"));
  problem_ = absl::StrCat(asked.text(), kNoLeader);
  if (told.has_value() && !told->SameHost(asked)) TryToFollow(*told);
}

void Members::HandleDecided(const HostMessage& message) {
  const auto number = Field<int64_t>(message, "number");
  if (number <= world_.number) return;
  World world;
  world.number = number;
  const HostMessage hosts = Field<HostMessage>(message, "hosts");
  contacts_.clear();
  for (const HostMessage& one : hosts) {
    contacts_.push_back({Field<std::string>(one, "id"),
                         Field<std::string>(one, "address"),
                         Field<int>(one, "port")});
    if (contacts_.back().id == id_) {
      world.node_rank = static_cast<int>(contacts_.size()) - 1;
    }
    world.addresses.push_back(contacts_.back().address);
  }
  world.nodes = static_cast<int>(contacts_.size());
  world.master_addr = SocketAddress::OtherEnd(leader_->fd()).host();
  world.master_port = Field<int>(message, "port");
  world.gentle = Field<bool>(message, "gentle");
  world.left_out = Field<bool>(message, "left_out");
  world.why = Field<std::string>(message, "why");
  world_ = std::move(world);
  if (world_.node_rank >= 0 || (!leaving_ && !world_.left_out)) return;
  ending_ = {world_.left_out ? world_.why : "this host has left the run",
             /*stops=*/false, world_.left_out ? 1 : 0};
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

void Members::Progressed(int64_t world) {
  if (roster_ == nullptr || progressed_in_ == world) return;
  progressed_in_ = world;
  roster_->Progressed();
  Decide(MeetingClock::now());
  SetTimer();
}

void Members::Died(int64_t world, int64_t step, const std::string& how) {
  if (roster_ == nullptr) {
    return Report(
        {{"kind", "died"}, {"world", world}, {"step", step}, {"text", how}});
  }
  const Deadline now = MeetingClock::now();
  if (finishing_) {
    return EndAll({absl::StrCat("ranks of this host ", how,
                                " when others had finished")});
  }
  roster_->Died(id_, world, step, how, now);
  Decide(now);
  SetTimer();
}

void Members::Failed(int64_t world, const std::string& error) {
  if (roster_ != nullptr) {
    return EndAll({absl::StrCat("host ", NameIn(id_), ": ", error)});
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
    const std::string why = absl::StrCat("host ", NameIn(id), " is left out");
    roster_->LeaveOut(id, why, MeetingClock::now());
  }
}

void Members::Finish(int code) {
  if (roster_ == nullptr) {
    return Report({{"kind", "finished"}, {"world", world_.number}});
  }
  finishing_ = true;
  EndAll({"the run has ended", /*stops=*/false, code});
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChangingHosts>> JoinHosts(
    const MembersOptions& options) {
  auto members = std::make_unique<Members>(options);
  CAPSTAN_RETURN_IF_ERROR(members->SetUp());
  return members;
}

}  // namespace capstan
