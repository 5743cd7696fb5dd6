// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/members.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/launch/environment.h"
#include "cluster/launch/rank_info.h"
#include "cluster/meet/listen.h"
#include "cluster/meet/meeting_file.h"
#include "cluster/members/greeter.h"
#include "cluster/members/host_server.h"
#include "cluster/members/leader.h"
#include "cluster/members/wire.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPause{100};
// Between looks for another leader.
constexpr seconds kRivalPause{1};
// How long the next leader may not answer, or may not know yet that it leads.
constexpr seconds kSilentLeader{3};
constexpr seconds kLateLeader{30};

// NAME, as cluster/comm tells hosts apart, or NAME@MACHINE: a host that is left
// out may come again under another name.
std::string OwnName() {
  const absl::optional<std::string> given = Variable("CAPSTAN_HOST_ID");
  std::string name = given.value_or(HostName()).substr(0, kMaxNameBytes);
  for (char& c : name) {
    if (c == '/' || c == '@') c = '_';
  }
  if (given.has_value()) return name;
  const absl::StatusOr<std::string> boot =
      ReadWholeFile("/proc/sys/kernel/random/boot_id", 100);
  return boot.ok() ? absl::StrCat(name, "@", absl::StripAsciiWhitespace(*boot))
                   : name;
}

class Members final : public ChangingHosts {
 public:
  explicit Members(const MembersOptions& options)
      : options_(options),
        key_(KeyOfHosts(options)),
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
  const World& world() const override { return state_.world; }
  const Ending& ending() const override { return state_.ending; }
  int TakeListening() override {
    return leads_ == nullptr ? -1 : leads_->TakeListening();
  }
  std::string Waits() const override;
  void Entered(int64_t world) override;
  void Progressed(int64_t world, int64_t step) override;
  void Died(int64_t world, int64_t step, const std::string& how,
            bool themselves) override;
  void Failed(int64_t world, const std::string& error) override;
  void Leave() override;
  void LeaveOut(int64_t world, const std::string& hosts) override;
  void Finish(int code) override;

 private:
  void SetTimer();

  // Looking for the leader, in rounds; or, as a leader, for another.
  void Seek(Deadline now);
  bool BeginRound(Deadline now);
  // Nobody has answered.
  void EndRound(Deadline now);
  bool SeeksNextLeader() const {
    return next_leader_ > 0 && next_leader_ < state_.contacts.size();
  }
  std::vector<SocketAddress> NextLeaderAddresses(Deadline now);
  std::vector<SocketAddress> LeaderAddresses() const;
  void Follow(std::unique_ptr<HostConnection> connection);
  bool TryToLead();

  void Lead(const Roster::Departure& last);
  void HandleMessage(HostServer::Peer* peer, const HostMessage& message);
  void Decide();

  // A member's.
  void HandleLeader();
  void HandleDecided(const HostMessage& message);
  void TakeContacts(const HostMessage& message);
  void GoElsewhere(const HostMessage& message);
  // What sends others to the leader that this host follows.
  HostMessage LeaderIs(const char* kind) const {
    const SocketAddress leader = SocketAddress::OtherEnd(leader_->fd());
    return {
        {"kind", kind}, {"address", leader.host()}, {"port", leader.port()}};
  }
  // Follows another leader with the members of this one.
  void StepDown();
  // This host's ranks end until a world has it again.
  void StepOut();
  void LoseLeader(const Roster::Departure& last);
  void Report(const HostMessage& message);
  void EndWith(const std::string& text) {
    if (!ended()) state_.ending = {text, /*failed=*/true};
  }
  bool ended() const { return !state_.ending.text.empty(); }

  const MembersOptions options_;
  const std::string key_;
  const std::string id_;
  const std::string file_path_;
  SocketFd epoll_;
  SocketFd timer_;
  std::unique_ptr<HostServer> server_;
  std::unique_ptr<Greeter> greeter_;
  HostsState state_;
  bool leaving_ = false;

  // Seeking, if no leader is known.
  Deadline seeking_since_;
  bool in_round_ = false;
  Deadline next_round_;
  std::string problem_;     // of the last one
  size_t next_leader_ = 0;  // in state_.contacts; 0: as when the run began
  Roster::Departure last_;  // of the last leader
  bool elsewhere_ = false;  // the next one answers, and doesn't lead yet
  absl::optional<Deadline> late_since_;

  std::unique_ptr<Leader> leads_;  // null unless this one does
  // If so, of another leader that this one may follow, or null.
  std::unique_ptr<HostConnection> leader_;
};

absl::Status Members::SetUp() {
  epoll_ = SocketFd(epoll_create1(EPOLL_CLOEXEC));
  timer_ =
      SocketFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !timer_.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("can't watch the run's hosts: ", strerror(errno)));
  }
  server_ = std::make_unique<HostServer>(epoll_.get(), key_, options_.token,
                                         options_.silence);
  // The next leader first asks the last one, for less time than the last one
  // takes to find that the others are silent.
  greeter_ = std::make_unique<Greeter>(epoll_.get(), key_, options_.token,
                                       options_.silence / 4);
  WatchSocket(epoll_.get(), timer_.get());
  next_round_ = MeetingClock::now();
  SetTimer();
  return absl::OkStatus();
}

void Members::CloseInChild() {
  // Open in a rank, they would outlive this process.
  server_->CloseInChild();
  greeter_->CloseInChild();
  if (leader_ != nullptr) close(leader_->fd());
  close(timer_.get());
  close(epoll_.get());
}

void Members::SetTimer() {
  Deadline next = std::min(server_->next_event(), greeter_->next_event());
  if (leads_ != nullptr) next = std::min(next, leads_->next_event());
  const bool seeks = leader_ == nullptr && !in_round_ && !ended() &&
                     (leads_ == nullptr || !leads_->Rivals().empty());
  if (seeks) next = std::min(next, next_round_);
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
    if (leads_ != nullptr) leads_->Lost(id, silent);
  }
  if (leader_ == nullptr) Seek(now);
  Decide();
  server_->Watch();
  if (leader_ != nullptr) leader_->Watch(epoll_.get());
  SetTimer();
}

// Seeking.

std::string Members::Waits() const {
  if (leads_ != nullptr) {
    return absl::StrCat(
        leads_->Rivals().empty()
            ? "waiting for more hosts at "
            : "waiting for the run's other hosts, which don't answer and may "
              "go on without this one, at ",
        server_->address().text());
  }
  if (leader_ != nullptr) {
    return state_.world.number == 0
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
  if (!in_round_ && !BeginRound(now)) return;
  std::unique_ptr<HostConnection> found = greeter_->Continue(now);
  if (found == nullptr && greeter_->asks()) return;
  in_round_ = false;
  next_round_ = now + (leads_ == nullptr ? kPause : kRivalPause);
  if (found != nullptr) return Follow(std::move(found));
  if (leads_ == nullptr) EndRound(now);
}

bool Members::BeginRound(Deadline now) {
  if (ended() || now < next_round_) return false;
  if (leads_ != nullptr) {
    const std::vector<SocketAddress> rivals = leads_->Rivals();
    if (rivals.empty()) return false;
    greeter_->Ask(rivals);
  } else if (now - seeking_since_ > options_.patience) {
    EndWith(absl::StrCat("no host of the run was found at ", options_.host, ":",
                         options_.port, " in ", options_.patience / seconds(1),
                         " s: ", problem_));
    return false;
  } else {
    greeter_->Ask(SeeksNextLeader() ? NextLeaderAddresses(now)
                                    : LeaderAddresses());
  }
  return in_round_ = true;
}

// In the order that all hosts know.
std::vector<SocketAddress> Members::NextLeaderAddresses(Deadline now) {
  std::vector<SocketAddress> addresses;
  const auto add = [&](const HostContact& one) {
    const auto address = SocketAddress::Parse(one.address, one.port);
    if (address.has_value()) addresses.push_back(*address);
  };
  if (!late_since_.has_value()) {
    late_since_ = now;
    elsewhere_ = false;
    // Only the link may have been cut, and another host may lead already.
    if (!last_.told && next_leader_ == 1) add(state_.contacts.front());
  }
  const HostContact& next = state_.contacts[next_leader_];
  if (next.id != id_) add(next);
  return addresses;
}

void Members::EndRound(Deadline now) {
  problem_ = std::string(greeter_->problem().message());
  if (!SeeksNextLeader()) {
    if (TryToLead()) Lead({});
    return;
  }
  if (state_.contacts[next_leader_].id == id_) return Lead(last_);
  if (now - *late_since_ < (elsewhere_ ? kLateLeader : kSilentLeader)) return;
  ++next_leader_;
  late_since_.reset();
}

void Members::Follow(std::unique_ptr<HostConnection> connection) {
  leader_ = std::move(connection);
  NoticeSilentHost(leader_->fd(), options_.silence);
  if (!server_->listens()) {
    SocketAddress own = SocketAddress::OwnEnd(leader_->fd());
    own.set_port(0);
    absl::StatusOr<SocketFd> listening = ListenAt(&own);
    if (!listening.ok()) {
      return EndWith(std::string(listening.status().message()));
    }
    server_->Listen(*std::move(listening));
  }
  if (leads_ == nullptr) {
    // Those who expected that this host would lead.
    server_->SendToAll(LeaderIs("elsewhere"));
  }
  HostMessage enrol = {{"kind", "enrol"},
                       {"id", id_},
                       {"port", server_->address().port()},
                       {"ranks", options_.roster.ranks_per_host},
                       {"digest", options_.digest},
                       {"number", state_.world.number}};
  if (leads_ != nullptr) {
    enrol["leads"] = leads_->Claim();
    // See StepOut.
    enrol["number"] = state_.world.number + 1;
  }
  leader_->Send(enrol);
  if (leaving_) leader_->Send({{"kind", "leaving"}});
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

void Members::Lead(const Roster::Departure& last) {
  if (state_.world.number > 0) TryToLead();
  leads_ = std::make_unique<Leader>(options_, id_, server_.get(), &state_,
                                    next_leader_, last);
  if (leaving_) leads_->Report(id_, {{"kind", "leaving"}});
}

void Members::Decide() {
  if (leads_ != nullptr && !leads_->Decide()) leads_.reset();
}

void Members::HandleMessage(HostServer::Peer* peer,
                            const HostMessage& message) {
  const bool enrols = HostField<std::string>(message, "kind") == "enrol";
  if (leads_ != nullptr && enrols) {
    leads_->Enrol(peer, message);
    // If it follows this one, this one doesn't follow it.
    if (message.contains("leads") && peer->connection->alive()) leader_.reset();
    return;
  }
  if (leads_ != nullptr && !peer->id.empty()) {
    return leads_->Report(peer->id, message);
  }
  if (!enrols) return peer->connection->Close();
  if (leader_ == nullptr) {
    // Another leader that follows comes again once this host leads or knows
    // who does.
    if (message.contains("leads")) return peer->connection->Close();
    // It knows earlier that this one is to lead.
    return server_->Enrol(peer, HostField<std::string>(message, "id"),
                          HostField<int>(message, "port"));
  }
  peer->connection->Send(LeaderIs("elsewhere"));
  peer->connection->Close();
}

// A member.

void Members::HandleLeader() {
  leader_->Flush();
  leader_->Receive();
  while (leader_ != nullptr) {
    const absl::optional<HostMessage> message = leader_->NextMessage();
    if (!message.has_value()) break;
    const auto kind = HostField<std::string>(*message, "kind");
    if (leads_ != nullptr && (kind == "decided" || kind == "end")) StepDown();
    if (kind == "decided") {
      HandleDecided(*message);
    } else if (kind == "end") {
      state_.ending = {
          HostField<std::string>(*message, "text", "the run has ended"),
          HostField<bool>(*message, "failed"),
          HostField<bool>(*message, "stops"), HostField<int>(*message, "code")};
    } else if (kind == "bye" && leads_ != nullptr) {
      return leader_.reset();
    } else if (kind == "bye") {
      TakeContacts(*message);
      state_.world.number =
          std::max(state_.world.number, HostField<int64_t>(*message, "number"));
      return LoseLeader({/*told=*/true, HostField<bool>(*message, "gentle")});
    } else if (kind == "elsewhere" || kind == "moved") {
      if (kind == "moved" && leads_ == nullptr) StepOut();
      return GoElsewhere(*message);
    }
  }
  if (leader_ != nullptr && !leader_->alive()) LoseLeader({});
}

void Members::GoElsewhere(const HostMessage& message) {
  const SocketAddress asked = SocketAddress::OtherEnd(leader_->fd());
  leader_.reset();
  elsewhere_ = true;
  const auto told =
      SocketAddress::Parse(HostField<std::string>(message, "address"),
                           HostField<int>(message, "port"));
  problem_ = absl::StrCat(asked.text(), ": it doesn't lead the run's hosts");
  if (!told.has_value() || told->text() == asked.text() ||
      told->text() == server_->address().text()) {
    return;
  }
  greeter_->Ask({*told});
  in_round_ = true;
}

void Members::StepDown() {
  server_->SendToAll(LeaderIs("moved"));
  leads_.reset();
  StepOut();
}

void Members::StepOut() {
  World out;
  out.number = state_.world.number + 1;
  out.why = "another part of the run goes on";
  state_.world = std::move(out);
  seeking_since_ = MeetingClock::now();
  next_leader_ = 0;
  late_since_.reset();
  if (leaving_) state_.ending = EndingWithout(state_.world);
}

void Members::TakeContacts(const HostMessage& message) {
  state_.contacts.clear();
  for (const HostMessage& one : HostField<HostMessage>(message, "hosts")) {
    state_.contacts.push_back({HostField<std::string>(one, "id"),
                               HostField<std::string>(one, "address"),
                               HostField<int>(one, "port")});
  }
  state_.left_out = HostField<std::set<std::string>>(message, "left_out");
  state_.world.nodes = std::min(HostField<int>(message, "nodes"),
                                static_cast<int>(state_.contacts.size()));
}

void Members::HandleDecided(const HostMessage& message) {
  const auto number = HostField<int64_t>(message, "number");
  seeking_since_ = MeetingClock::now();
  TakeContacts(message);
  // Only others have come to wait; or this host has been in a later world, of
  // another leader.
  if (number <= state_.world.number) return;
  World world;
  world.number = number;
  world.nodes = state_.world.nodes;
  for (int i = 0; i < world.nodes; ++i) {
    if (state_.contacts[i].id == id_) world.node_rank = i;
    world.addresses.push_back(state_.contacts[i].address);
  }
  world.master_addr = SocketAddress::OtherEnd(leader_->fd()).host();
  world.master_port = HostField<int>(message, "port");
  world.gentle = HostField<bool>(message, "gentle");
  // Another host of this machine may be the one that is.
  world.left_out =
      state_.left_out.count(KeyIn(id_)) > 0 &&
      std::none_of(state_.contacts.begin(), state_.contacts.end(),
                   [this](const HostContact& one) { return one.id == id_; });
  world.why = HostField<std::string>(message, "why");
  state_.world = std::move(world);
  if (state_.world.node_rank < 0 && (leaving_ || state_.world.left_out)) {
    state_.ending = EndingWithout(state_.world);
  }
}

void Members::LoseLeader(const Roster::Departure& last) {
  leader_.reset();
  if (ended() || leads_ != nullptr) return;
  last_ = last;
  next_leader_ = state_.world.number > 0 ? 1 : 0;
  late_since_.reset();
  problem_.clear();
  seeking_since_ = next_round_ = MeetingClock::now();
}

void Members::Report(const HostMessage& message) {
  // Without a leader, the next one makes a new world anyway.
  if (leads_ == nullptr) {
    if (leader_ != nullptr) leader_->Send(message);
    return;
  }
  leads_->Report(id_, message);
  Decide();
  SetTimer();
}

void Members::Entered(int64_t world) {
  Report({{"kind", "entered"}, {"world", world}});
}

void Members::Progressed(int64_t world, int64_t step) {
  if (leads_ != nullptr) leads_->Progressed(world, step);
}

void Members::Died(int64_t world, int64_t step, const std::string& how,
                   bool themselves) {
  Report({{"kind", "died"},
          {"world", world},
          {"step", step},
          {"text", how},
          {"themselves", themselves}});
}

void Members::Failed(int64_t world, const std::string& error) {
  Report({{"kind", "failed"}, {"world", world}, {"text", error}});
}

void Members::Leave() {
  if (!std::exchange(leaving_, true)) Report({{"kind", "leaving"}});
}

void Members::LeaveOut(int64_t world, const std::string& hosts) {
  Report({{"kind", "leave_out"}, {"world", world}, {"text", hosts}});
}

void Members::Finish(int code) {
  Report(
      {{"kind", "finished"}, {"world", state_.world.number}, {"code", code}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChangingHosts>> JoinHosts(
    const MembersOptions& options) {
  auto members = std::make_unique<Members>(options);
  CAPSTAN_RETURN_IF_ERROR(members->SetUp());
  return members;
}

}  // namespace capstan
