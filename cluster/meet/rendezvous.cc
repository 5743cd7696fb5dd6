// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/rendezvous.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/launch/network.h"
#include "cluster/launch/progress.h"
#include "cluster/meet/client.h"
#include "cluster/meet/listen.h"
#include "cluster/meet/meeting_file.h"
#include "cluster/meet/meeting_store.h"
#include "cluster/meet/protocol.h"
#include "cluster/meet/server.h"
#include "cluster/meet/texts_of_ranks.h"
#include "cluster/meet/wait_notes.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// For one try, of an address that leads nowhere.
constexpr seconds kConnectLimit{3};
// How long a peer may take to prove that it is rank 0, which may be late
// although its launcher listens already. The address in a stale file may belong
// to a silent program, and the file may have been replaced meanwhile.
constexpr seconds kProofLimit{30};
constexpr seconds kProofLimitByFile{5};
// How long another run, which may be ending, may occupy this run's address.
constexpr seconds kOthersLimit{10};
// Between tries: looking at a file, and sending packets to rank 0's host.
constexpr milliseconds kFilePause{100};
constexpr milliseconds kConnectPause{250};

// In the store of torchrun's agent.
constexpr char kPlace[] = "capstan/place";

// Within a catch clause.
absl::Status AgentError() {
  return absl::UnavailableError(
      absl::StrCat("torchrun's agent: ", CurrentExceptionToStatus().message()));
}

// Connects to the store that torchrun's agent serves at
// MASTER_ADDR:MASTER_PORT, in which rank 0 publishes its place. The agent obeys
// anybody who reaches it, so the ranks meet at rank 0 as under any other
// launcher. This and the functions below return UNAVAILABLE if the agent
// doesn't answer.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenAgentStore(
    const RankInfo& info, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.numWorkers = info.world_size;
  options.timeout = timeout;
  options.waitWorkers = false;
  options.isServer = false;
  try {
    c10::intrusive_ptr<c10d::Store> store =
        c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
    // The agent's store survives restarts of the ranks.
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (restarts == nullptr) return store;
    return c10::make_intrusive<c10d::PrefixStore>(
        absl::StrCat("/worker/attempt_", restarts), std::move(store));
  } catch (...) {
    return AgentError();
  }
}

absl::Status PublishPlace(c10d::Store& agent, const MeetingPlace& place) {
  try {
    agent.set(kPlace, Encode(place));
    return absl::OkStatus();
  } catch (...) {
    return AgentError();
  }
}

// Also UNAVAILABLE until rank 0 has published it.
absl::StatusOr<MeetingPlace> PublishedPlace(c10d::Store& agent) {
  try {
    if (agent.check({kPlace}))
      return ParseMeetingPlace(agent.get_to_str(kPlace));
    return absl::UnavailableError("it hasn't published its address yet");
  } catch (...) {
    return AgentError();
  }
}

// Those of rank 0 that are numeric, as they should be.
std::vector<SocketAddress> AddressesOf(const MeetingPlace& place) {
  std::vector<SocketAddress> addresses;
  for (const std::string& host : place.addresses) {
    const absl::optional<SocketAddress> address =
        SocketAddress::Parse(host, place.port);
    if (address.has_value()) addresses.push_back(*address);
  }
  return addresses;
}

// Joins one rank.
class Joining {
 public:
  Joining(const RankInfo& info, milliseconds timeout)
      : info_(info),
        timeout_(timeout),
        published_(info.agent_store || info.master_addr.empty() ||
                   info.master_port == 0),
        file_(published_ && !info.agent_store
                  ? MeetingFilePath(info.meeting_folder, info.run_key)
                  : "") {}

  // Comes first.
  absl::Status Prepare();
  absl::StatusOr<Meeting> AsRank0();
  absl::StatusOr<Meeting> AsOther();

 private:
  // Whether the ranks have met before, and were started again.
  bool Returns() const { return info_.comes_again && info_.restart > 0; }
  Hello OwnHello() const;
  Deadline Within(milliseconds limit) const {
    return std::min(deadline_, MeetingClock::now() + limit);
  }
  MeetingClock::duration waited() const { return MeetingClock::now() - begin_; }
  int64_t seconds_waited() const {
    return std::chrono::round<seconds>(waited()).count();
  }

  // Rank 0: tells the others its place, if the launcher doesn't. The file, if
  // it is one, must stay until they have come.
  absl::StatusOr<std::unique_ptr<MeetingFile>> Publish(
      const MeetingPlace& place) const;
  // Where rank 0 has published that it is. NOT_FOUND if there is no file.
  absl::StatusOr<MeetingPlace> ReadPlace() const;
  // Rank 0: nobody else may be using the file.
  absl::Status AwaitFreeFile() const;
  bool IsAlive(const MeetingPlace& place) const;

  // Tries each address that rank 0 may have once.
  absl::StatusOr<std::shared_ptr<MeetingClient>> TryOnce();
  absl::StatusOr<std::vector<SocketAddress>> Rank0Addresses(
      std::string* token) const;
  // Whether there is more to try after `problem`.
  bool MayChange(const absl::Status& problem);
  bool MayLoseRank0() const;
  // Whether the others go on without rank 0's host, which nobody has reached
  // since the restart.
  bool Rank0IsGone() const;
  // After a refusal: whether they are meeting without it already. Each host
  // decides by its own clock.
  bool OthersGoOn() const;
  absl::Status GiveUp(const absl::Status& problem) const;

  absl::StatusOr<Meeting> AwaitOthers(std::shared_ptr<MeetingServer> server,
                                      std::shared_ptr<MeetingClient> client);
  absl::StatusOr<std::string> HostAddress(const MeetingClient& client,
                                          const Met& met) const;
  absl::Status Explain(const absl::Status& status) const;
  // "at HOST:PORT", or by what tells it.
  std::string Rank0Place() const;

  const RankInfo& info_;
  const milliseconds timeout_;
  const Deadline begin_ = MeetingClock::now();
  const Deadline deadline_ = begin_ + timeout_;
  // Whether rank 0 publishes its address: in the store of torchrun's agent, or
  // in a file.
  const bool published_;
  c10::intrusive_ptr<c10d::Store> agent_;  // or null
  const std::string file_;                 // or ""
  std::string where_;                      // rank 0's address, once known
  std::vector<SocketAddress> tried_;       // where rank 0 was last looked for
  // One rank of a host speaks for all.
  WaitNotes notes_;
  // Since when only others have been found at the address.
  absl::optional<Deadline> others_since_;
};

absl::Status Joining::Prepare() {
  if (info_.run_key.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the run's name is longer than ", kMaxNameBytes,
                     " characters: ", info_.run_key));
  }
  if (published_ && !info_.agent_store && info_.meeting_folder.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", info_.rank,
        " isn't told where rank 0 is: set MASTER_ADDR and "
        "MASTER_PORT, or output_dir to a folder that all hosts share"));
  }
  // Not only once all have come.
  if (info_.nodes > 1 && !info_.interface.empty()) {
    const absl::Status there =
        AddressOfInterface(info_.interface, ThisHostsNetwork()).status();
    if (!there.ok()) return absl::FailedPreconditionError(there.message());
  }
  if (!info_.agent_store) return absl::OkStatus();
  absl::StatusOr<c10::intrusive_ptr<c10d::Store>> agent =
      OpenAgentStore(info_, timeout_);
  if (!agent.ok()) return Explain(agent.status());
  agent_ = *std::move(agent);
  return absl::OkStatus();
}

Hello Joining::OwnHello() const {
  Hello hello;
  hello.world_size = info_.world_size;
  hello.rank = info_.rank;
  hello.node_rank = info_.node_rank;
  hello.local_rank = info_.local_rank;
  hello.pid = getpid();
  hello.host = HostName().substr(0, kMaxNameBytes);
  hello.run_key = info_.run_key;
  return hello;
}

absl::StatusOr<Meeting> Joining::AsRank0() {
  MeetingServerOptions options;
  options.world_size = info_.world_size;
  options.run_key = info_.run_key;
  options.token = info_.token;
  options.ranks_come_again = info_.comes_again;
  if (Returns()) options.least_ranks = info_.min_processes;
  options.ranks_per_host = info_.local_world_size;
  MeetingPlace place;
  RankInfo listens = info_;
  if (published_) {
    if (agent_ == nullptr) CAPSTAN_RETURN_IF_ERROR(AwaitFreeFile());
    if (info_.token.empty()) {
      place.token = RandomToken();
      options.token = place.token;
    }
  }
  if (agent_ != nullptr) {
    // The port is the agent's, and its host may be another one.
    listens.master_port = 0;
    if (info_.nodes == 1) listens.master_addr.clear();
  }
  CAPSTAN_ASSIGN_OR_RETURN(Listening listening,
                           ListenForRanks(listens, deadline_));
  for (const SocketAddress& address : listening.addresses) {
    place.addresses.push_back(address.host());
  }
  const SocketAddress own = listening.addresses[0];
  place.port = own.port();
  place.host = HostName();
  place.pid = getpid();
  where_ = own.text();
  options.where = where_;
  options.host_address = own.host();
  const std::string token = options.token;
  CAPSTAN_ASSIGN_OR_RETURN(
      std::shared_ptr<MeetingServer> server,
      MeetingServer::Start(std::move(options), std::move(listening.sockets)));
  // Rank 0 joins first, so that ranks that find the file find it listening.
  const Deadline soon = MeetingClock::now() + kConnectLimit;
  absl::StatusOr<SocketFd> connection = ConnectTo(own, soon);
  if (!connection.ok()) return Explain(connection.status());
  auto client = MeetingClient::Join(*std::move(connection), OwnHello(), token,
                                    soon, deadline_);
  if (!client.ok()) return Explain(client.status());
  const absl::StatusOr<std::unique_ptr<MeetingFile>> file = Publish(place);
  if (!file.ok()) {
    return Annotate(file.status(), "rank 0 can't tell the others its address");
  }
  return AwaitOthers(std::move(server), *std::move(client));
}

absl::StatusOr<std::unique_ptr<MeetingFile>> Joining::Publish(
    const MeetingPlace& place) const {
  if (agent_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(PublishPlace(*agent_, place));
  }
  if (file_.empty()) return std::unique_ptr<MeetingFile>();
  return MeetingFile::Publish(file_, place);
}

absl::StatusOr<MeetingPlace> Joining::ReadPlace() const {
  return agent_ != nullptr ? PublishedPlace(*agent_) : ReadMeetingPlace(file_);
}

absl::Status Joining::AwaitFreeFile() const {
  while (true) {
    const absl::StatusOr<MeetingPlace> place = ReadMeetingPlace(file_);
    // None, or what an earlier run has left: it is replaced.
    if (!place.ok() || !IsAlive(*place)) return absl::OkStatus();
    if (waited() > std::min<milliseconds>(kOthersLimit, timeout_)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "another run is meeting by ", file_, " (host ",
          absl::Utf8SafeCEscape(place->host), ", process ", place->pid,
          "): wait until it has started, stop it, or name another output_dir"));
    }
    std::this_thread::sleep_for(PauseBeforeRetry(waited(), kFilePause));
  }
}

bool Joining::IsAlive(const MeetingPlace& place) const {
  // The deadline doesn't shorten this: a host that has no time to answer isn't
  // lost.
  const auto soon = [] { return MeetingClock::now() + seconds(1); };
  const std::string& token = place.token.empty() ? info_.token : place.token;
  for (const SocketAddress& address : AddressesOf(place)) {
    absl::StatusOr<SocketFd> connection = ConnectTo(address, soon());
    if (connection.ok() &&
        MeetingClient::Probe(*std::move(connection), OwnHello(), token, soon())
            .ok()) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<Meeting> Joining::AsOther() {
  while (true) {
    absl::StatusOr<std::shared_ptr<MeetingClient>> client = TryOnce();
    if (client.ok()) return AwaitOthers(nullptr, *std::move(client));
    if (absl::IsFailedPrecondition(client.status()) && OthersGoOn()) {
      NoteHostsGone("0");
      return absl::UnavailableError("the others go on without host 0");
    }
    if (!MayChange(client.status())) return Explain(client.status());
    if (absl::IsUnavailable(client.status()) && Rank0IsGone()) {
      return Explain(absl::OutOfRangeError("0"));
    }
    if (MeetingClock::now() >= deadline_) return GiveUp(client.status());
    if (info_.local_rank == 0) {
      notes_.SayIfDue([&] {
        return absl::StrCat("rank ", info_.rank, " is waiting for rank 0 ",
                            Rank0Place(), ": ", client.status().message());
      });
    }
    std::this_thread::sleep_for(
        PauseBeforeRetry(waited(), published_ ? kFilePause : kConnectPause));
  }
}

absl::StatusOr<std::vector<SocketAddress>> Joining::Rank0Addresses(
    std::string* token) const {
  if (!published_) return Resolve(info_.master_addr, info_.master_port);
  const absl::StatusOr<MeetingPlace> place = ReadPlace();
  if (!place.ok()) {
    return absl::UnavailableError(
        absl::IsNotFound(place.status())
            ? "there is no such file; is it a folder that all hosts share?"
            : place.status().message());
  }
  if (!place->token.empty()) *token = place->token;
  const std::vector<SocketAddress> addresses = AddressesOf(*place);
  if (addresses.empty()) return absl::UnavailableError("it has no address");
  return addresses;
}

absl::StatusOr<std::shared_ptr<MeetingClient>> Joining::TryOnce() {
  std::string token = info_.token;
  CAPSTAN_ASSIGN_OR_RETURN(tried_, Rank0Addresses(&token));
  absl::Status problem;
  for (const SocketAddress& address : tried_) {
    absl::StatusOr<SocketFd> connection =
        ConnectTo(address, Within(kConnectLimit));
    absl::Status status = connection.status();
    if (status.ok()) {
      auto client = MeetingClient::Join(
          *std::move(connection), OwnHello(), token,
          Within(published_ ? kProofLimitByFile : kProofLimit), deadline_);
      where_ = address.text();
      if (client.ok()) {
        return std::shared_ptr<MeetingClient>(*std::move(client));
      }
      status =
          absl::Status(client.status().code(),
                       absl::StrCat(where_, ": ", client.status().message()));
      if (!absl::IsNotFound(status) && !absl::IsUnavailable(status)) {
        return client.status();
      }
    }
    // An error about another process there says more than one about nobody.
    if (problem.ok() || absl::IsNotFound(status)) problem = status;
  }
  return problem;
}

bool Joining::MayChange(const absl::Status& problem) {
  if (absl::IsUnavailable(problem)) {
    others_since_.reset();
    return true;
  }
  // This rank's launcher has just killed its predecessor.
  if (absl::IsAlreadyExists(problem)) return info_.comes_again;
  if (!absl::IsNotFound(problem)) return false;
  // A file may be a left-over, and is looked at again.
  if (published_) return true;
  const Deadline now = MeetingClock::now();
  if (!others_since_.has_value()) others_since_ = now;
  return now - *others_since_ < kOthersLimit;
}

bool Joining::Rank0IsGone() const {
  return MayLoseRank0() &&
         waited() >= std::chrono::duration<double>(info_.return_seconds);
}

bool Joining::MayLoseRank0() const {
  return Returns() && info_.min_processes > 0 && !NotedHosts().empty() &&
         info_.world_size - info_.local_world_size >= info_.min_processes;
}

bool Joining::OthersGoOn() const {
  if (!published_ || !MayLoseRank0()) return false;
  const std::vector<std::string> hosts = absl::StrSplit(NotedHosts(), ',');
  // At the first host's place this host was given up, for it came too late.
  const auto is_later = [&](const SocketAddress& a) {
    return a.host() != hosts[0] && absl::c_linear_search(hosts, a.host());
  };
  return absl::c_any_of(tried_, is_later);
}

absl::Status Joining::GiveUp(const absl::Status& problem) const {
  return absl::UnavailableError(absl::StrCat(
      "rank ", info_.rank, " waited ", seconds_waited(), " s for rank 0 ",
      Rank0Place(), ": ", problem.message(),
      Returns()
          ? "; if its host is gone, start the run on other hosts: it goes "
            "on from its last checkpoint"
          : ""));
}

std::string Joining::Rank0Place() const {
  if (!file_.empty()) return absl::StrCat("by ", file_);
  return absl::StrCat(agent_ != nullptr ? "by torchrun's agent at " : "at ",
                      info_.master_addr, ":", info_.master_port);
}

absl::StatusOr<Meeting> Joining::AwaitOthers(
    std::shared_ptr<MeetingServer> server,
    std::shared_ptr<MeetingClient> client) {
  // The server speaks for rank 0's host, and knows who is missing.
  const bool speaks = info_.local_rank == 0 && info_.rank != 0;
  const absl::StatusOr<Met> met = client->AwaitAll(deadline_, [&] {
    if (!speaks) return;
    notes_.SayIfDue([&] {
      return absl::StrCat("rank ", info_.rank, " has found rank 0 at ", where_,
                          ", and waits for the other ranks");
    });
  });
  if (!met.ok()) return Explain(met.status());
  Meeting meeting;
  CAPSTAN_ASSIGN_OR_RETURN(meeting.host_address, HostAddress(*client, *met));
  const auto address = SocketAddress::Parse(meeting.host_address, 0);
  if (address.has_value()) meeting.interface = InterfaceOf(*address);
  meeting.store = c10::make_intrusive<MeetingStore>(
      std::move(server), std::move(client), timeout_);
  return meeting;
}

absl::StatusOr<std::string> Joining::HostAddress(const MeetingClient& client,
                                                 const Met& met) const {
  if (info_.rank == 0) return met.host_address;
  const auto rank0 = SocketAddress::Parse(met.host_address, 0);
  const bool outside = rank0.has_value() && !rank0->IsLoopback();
  if (outside && !info_.interface.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const SocketAddress chosen,
        AddressOfInterface(info_.interface, ThisHostsNetwork()));
    return chosen.host();
  }
  const SocketAddress own = client.own_end();
  // A rank that connected over loopback is on rank 0's host.
  if (outside && own.IsLoopback()) return met.host_address;
  return own.host();
}

absl::Status Joining::Explain(const absl::Status& status) const {
  if (absl::IsOutOfRange(status)) {
    // For the launcher, which starts the ranks that are left.
    NoteHostsGone(std::string(status.message()));
    return absl::UnavailableError(absl::StrCat("host ", status.message(),
                                               " has not come back in ",
                                               seconds_waited(), " s"));
  }
  if (absl::IsDeadlineExceeded(status)) {
    return absl::UnavailableError(absl::StrCat("rank ", info_.rank, " waited ",
                                               seconds_waited(), " s at ",
                                               where_, ": ", status.message()));
  }
  const bool names_it =
      where_.empty() || absl::StartsWith(status.message(), where_);
  // A rank that has left has told why, or its launcher will.
  const bool by_others = absl::IsUnavailable(status) || absl::IsAborted(status);
  return absl::Status(
      by_others ? absl::StatusCode::kUnavailable
                : absl::StatusCode::kFailedPrecondition,
      absl::StrCat("rank ", info_.rank, " could not meet the other ranks",
                   names_it ? "" : absl::StrCat(" at ", where_), ": ",
                   status.message()));
}

// Makes all ranks record all hosts' addresses.
absl::Status TellHosts(const RankInfo& info, const Meeting& meeting) {
  try {
    const bool first = info.local_rank == 0;
    std::map<int, std::string> addresses;
    for (const std::string& text : TextsOfRanks(
             *meeting.store, "capstan/host", info.rank, info.world_size,
             first ? absl::StrCat(info.node_rank, " ", meeting.host_address)
                   : "")) {
      const std::pair<absl::string_view, absl::string_view> host =
          absl::StrSplit(text, absl::MaxSplits(' ', 1));
      int number = 0;
      if (!absl::SimpleAtoi(host.first, &number)) continue;
      addresses[number] = std::string(host.second);
    }
    std::string hosts;
    for (const auto& [number, address] : addresses) {
      absl::StrAppend(&hosts, hosts.empty() ? "" : ",", address);
    }
    NoteHosts(hosts);
  } catch (...) {
    return CouldNotMeet(info);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Meeting> Meet(const RankInfo& info, milliseconds timeout) {
  if (info.comes_again && info.restart > 0) {
    // Others wait longer, so that they don't leave before rank 0 gives up a
    // host.
    const double most = info.return_seconds * (info.rank == 0 ? 1.0 : 4.0);
    timeout = std::min(timeout, milliseconds(static_cast<int64_t>(1e3 * most)));
  }
  Joining joining(info, timeout);
  CAPSTAN_RETURN_IF_ERROR(joining.Prepare());
  CAPSTAN_ASSIGN_OR_RETURN(
      Meeting meeting, info.rank == 0 ? joining.AsRank0() : joining.AsOther());
  if (info.comes_again) CAPSTAN_RETURN_IF_ERROR(TellHosts(info, meeting));
  return meeting;
}

absl::Status CouldNotMeet(const RankInfo& info) {
  return absl::UnavailableError(
      absl::StrCat("rank ", info.rank, " could not meet the other ranks: ",
                   CurrentExceptionToStatus().message()));
}

void MayLeave(const Meeting& meeting) {
  auto* const store = dynamic_cast<MeetingStore*>(meeting.store.get());
  if (store != nullptr) store->client().MayLeave();
}

void ChooseInterfaceOfNccl(const RankInfo& info, const Meeting& meeting) {
  if (info.nodes < 2 || meeting.interface.empty()) return;
  // '=': this one, not all that begin so.
  setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", meeting.interface).c_str(),
         /*replace=*/0);
}

}  // namespace capstan
