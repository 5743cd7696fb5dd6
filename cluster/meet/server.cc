// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/server.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/quiet_thread.h"
#include "base/status.h"
#include "cluster/meet/admission.h"
#include "cluster/meet/key_table.h"
#include "cluster/meet/protocol.h"
#include "cluster/meet/wait_notes.h"

namespace capstan {
namespace {

// Connections that may be in the handshake at once, beside one for each rank.
constexpr size_t kStrangers = 256;
// Bytes that wait to be sent, from which on a connection isn't read.
constexpr size_t kMuchOutput = 1 << 20;

// How long the end waits for output that is under way.
constexpr std::chrono::milliseconds kFlushLimit{1000};
// A rank's patience, at most.
constexpr std::chrono::milliseconds kMostPatience = std::chrono::hours(24 * 7);

enum class Stage {
  kNew,
  kChallenged,
  kJoined,
  kRefused,  // was told so; nothing that it says is read on
};

struct Connection {
  uint64_t id = 0;
  SocketFd fd;
  std::string from;  // for messages
  Stage stage = Stage::kNew;
  bool said_bye = false;
  // Is removed at the end of the round.
  bool dead = false;
  // Of the handshake, and then of the rank's patience, until all have come.
  Deadline deadline;

  FrameBuffer input{kMaxStrangerPayload};
  std::string output;

  Hello hello;
  std::string hello_payload;
  std::string nonce;  // of its challenge

  bool joined() const { return stage == Stage::kJoined; }
};

// Kinds of warnings, beside the reasons of refusals.
enum WarningKind { kGarbage = 1000, kRankGarbage, kSilence, kOtherMeeting };

class Server final : public MeetingServer {
 public:
  Server(MeetingServerOptions options, std::vector<SocketFd> listening)
      : options_(std::move(options)),
        listening_(std::move(listening)),
        admission_(options_.world_size, options_.run_key, options_.token),
        keys_([this](uint64_t client, const StoreResponse& response) {
          Send(connections_.at(client).get(), Encode(response));
        }) {}
  ~Server() override;

  absl::Status StartThread();

 private:
  void Run();
  bool Finished();
  // For the ranks that are missing.
  bool waits() const { return !met_ && !admission_.failed(); }
  // Whether the connection has a deadline.
  bool IsTimed(const Connection& c) const { return !c.joined() || waits(); }
  Deadline NextDeadline() const;
  // Waits for events until the next deadline, and handles them.
  void HandleEvents();
  void HandleDeadlines(Deadline now);
  Refusal WhenTimeIsUp() const;
  void RemoveDead();

  void Accept(int listening_fd);
  // False if nobody is in the handshake.
  bool DropOldestStranger();

  void Receive(Connection* c);
  void HandleFrame(Connection* c, const std::string& payload);
  void HandleHello(Connection* c, const std::string& payload);
  void HandleAnswer(Connection* c, const std::string& payload);
  void HandleOfRank(Connection* c, const std::string& payload);
  void HandleGarbage(Connection* c);
  void Refuse(Connection* c, const Refusal& refusal);
  void Join(Connection* c, int64_t patience_ms);

  void Send(Connection* c, const std::string& frame);
  void SendToRanks(const std::string& frame);
  void Flush(Connection* c);
  void HandleLoss(const Connection& c);

  void Fail(const Refusal& why);
  void WarnOnce(int kind, const std::string& line);

  const MeetingServerOptions options_;
  std::vector<SocketFd> listening_;
  Admission admission_;
  WaitNotes notes_;
  KeyTable keys_;
  SocketFd wake_;
  std::atomic<bool> stop_{false};
  absl::optional<Deadline> stop_deadline_;
  bool met_ = false;

  // By their ids, and so by age.
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t last_id_ = 0;
  std::set<int> warned_;
  std::thread thread_;
};

absl::Status Server::StartThread() {
  AllowOpenFiles(options_.world_size + static_cast<int>(kStrangers) + 256);
  wake_ = SocketFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank 0 can't serve the meeting: eventfd: ", strerror(errno)));
  }
  thread_ = QuietThread([this] { Run(); });
  return absl::OkStatus();
}

Server::~Server() {
  if (!thread_.joinable()) return;
  stop_ = true;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Server::Run() {
  while (!Finished()) {
    HandleEvents();
    HandleDeadlines(MeetingClock::now());
    RemoveDead();
  }
}

bool Server::Finished() {
  if (!stop_) return false;
  const Deadline now = MeetingClock::now();
  if (!stop_deadline_.has_value()) stop_deadline_ = now + kFlushLimit;
  if (now >= *stop_deadline_) return true;
  return std::all_of(
      connections_.begin(), connections_.end(),
      [](const auto& one) { return one.second->output.empty(); });
}

Deadline Server::NextDeadline() const {
  Deadline next = keys_.NextExpiry();
  for (const auto& [id, c] : connections_) {
    if (IsTimed(*c)) next = std::min(next, c->deadline);
  }
  if (waits()) next = std::min(next, notes_.next());
  if (stop_deadline_.has_value()) next = std::min(next, *stop_deadline_);
  return next;
}

void Server::HandleEvents() {
  std::vector<pollfd> fds;
  // Until Finished has seen stop_: set in between, it must still end poll().
  if (!stop_deadline_.has_value()) fds.push_back({wake_.get(), POLLIN, 0});
  const size_t first_listening = fds.size();
  for (const SocketFd& fd : listening_) fds.push_back({fd.get(), POLLIN, 0});
  const size_t first_connection = fds.size();
  std::vector<Connection*> polled;
  for (const auto& [id, c] : connections_) {
    // Who doesn't read its answers gets no more of them.
    const int wanted = (c->output.size() < kMuchOutput ? POLLIN : 0) |
                       (c->output.empty() ? 0 : POLLOUT);
    fds.push_back({c->fd.get(), static_cast<int16_t>(wanted), 0});
    polled.push_back(c.get());
  }
  if (poll(fds.data(), fds.size(), MillisecondsUntil(NextDeadline())) <= 0) {
    return;
  }
  for (size_t i = first_listening; i < first_connection; ++i) {
    if (fds[i].revents != 0) Accept(fds[i].fd);
  }
  for (size_t i = 0; i < polled.size(); ++i) {
    const int events = fds[first_connection + i].revents;
    if ((events & POLLOUT) != 0) Flush(polled[i]);
    if ((events & ~POLLOUT) != 0) Receive(polled[i]);
  }
}

void Server::HandleDeadlines(Deadline now) {
  for (const auto& [id, c] : connections_) {
    if (c->dead || !IsTimed(*c) || c->deadline > now) continue;
    if (c->joined()) {
      Fail(WhenTimeIsUp());
      continue;
    }
    if (c->stage != Stage::kRefused) {
      WarnOnce(kSilence, absl::StrCat(c->from, " connected to the meeting and ",
                                      "didn't say who it is"));
    }
    c->dead = true;
  }
  if (waits()) {
    notes_.SayIfDue([this] {
      return absl::StrCat("waiting for the other ranks at ", options_.where,
                          " (", AreMissing(admission_.MissingRanks()), ")");
    });
  }
  keys_.Expire(now);
}

Refusal Server::WhenTimeIsUp() const {
  const std::vector<int> missing = admission_.MissingRanks();
  std::set<int> hosts;
  for (const int rank : missing) hosts.insert(rank / options_.ranks_per_host);
  const std::string gone = absl::StrJoin(hosts, ",");
  const int left = options_.world_size -
                   static_cast<int>(hosts.size()) * options_.ranks_per_host;
  if (options_.least_ranks == 0 || left < options_.least_ranks ||
      gone.size() >= kMaxTextBytes) {
    return {RefusalReason::kTimedOut,
            OnlySomeCame(options_.world_size, missing)};
  }
  return {RefusalReason::kHostsGone, gone};
}

void Server::RemoveDead() {
  // A loss is told to the others, one of which may turn out to be lost, too.
  for (auto next = connections_.begin(); next != connections_.end();) {
    if (!next->second->dead) {
      ++next;
      continue;
    }
    const std::unique_ptr<Connection> c = std::move(next->second);
    connections_.erase(next);
    keys_.Forget(c->id);
    HandleLoss(*c);
    next = connections_.begin();
  }
}

void Server::Accept(int listening_fd) {
  // Not for ever: others want their turn.
  for (int i = 0; i < 64; ++i) {
    SocketFd fd(
        accept4(listening_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      SetUpConnection(fd.get());
      auto c = std::make_unique<Connection>();
      c->id = ++last_id_;
      c->from = SocketAddress::OtherEnd(fd.get()).text();
      c->fd = std::move(fd);
      c->deadline = MeetingClock::now() + options_.handshake_limit;
      connections_.emplace(c->id, std::move(c));
      const auto strangers = std::count_if(
          connections_.begin(), connections_.end(), [](const auto& one) {
            return !one.second->dead && !one.second->joined();
          });
      if (strangers > static_cast<int64_t>(options_.world_size + kStrangers)) {
        DropOldestStranger();
      }
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
        errno == ENOMEM) {
      // It would be reported again at once, and for ever.
      if (!DropOldestStranger()) usleep(10000);
      return;
    }
    // EINTR, or a peer that has gone, isn't the end.
    if (errno != EINTR && errno != ECONNABORTED) return;
  }
}

bool Server::DropOldestStranger() {
  for (const auto& [id, c] : connections_) {
    if (c->dead || c->joined()) continue;
    c->dead = true;
    return true;
  }
  return false;
}

void Server::Receive(Connection* c) {
  if (c->dead) return;
  char buffer[64 << 10];
  const ssize_t n = recv(c->fd.get(), buffer, sizeof(buffer), 0);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return;
  }
  if (n <= 0) {
    c->dead = true;
    return;
  }
  if (c->stage == Stage::kRefused) return;
  c->input.Append(absl::string_view(buffer, static_cast<size_t>(n)));
  while (!c->dead && c->stage != Stage::kRefused) {
    const auto payload = c->input.Next();
    if (!payload.ok()) return HandleGarbage(c);
    if (!payload->has_value()) return;
    HandleFrame(c, **payload);
  }
}

void Server::HandleFrame(Connection* c, const std::string& payload) {
  switch (c->stage) {
    case Stage::kNew:
      return HandleHello(c, payload);
    case Stage::kChallenged:
      return HandleAnswer(c, payload);
    case Stage::kJoined:
      return HandleOfRank(c, payload);
    case Stage::kRefused:
      return;
  }
}

void Server::HandleHello(Connection* c, const std::string& payload) {
  absl::StatusOr<Hello> hello = ParseHello(payload);
  if (!hello.ok()) return HandleGarbage(c);
  c->hello = *std::move(hello);
  const absl::optional<Refusal> refusal = admission_.JudgeHello(c->hello);
  if (refusal.has_value()) return Refuse(c, *refusal);
  const Challenge challenge = admission_.ChallengeFor(payload);
  c->hello_payload = payload;
  c->nonce = challenge.nonce;
  c->stage = Stage::kChallenged;
  Send(c, Encode(challenge));
}

void Server::HandleAnswer(Connection* c, const std::string& payload) {
  if (KindOf(payload) == MessageKind::kRefusal) {
    const absl::StatusOr<Refusal> theirs = ParseRefusal(payload);
    if (theirs.ok()) {
      WarnOnce(kOtherMeeting,
               absl::StrCat(Describe(c->hello), " at ", c->from,
                            " came to the meeting and left: ", theirs->text));
    }
    c->dead = true;
    return;
  }
  const absl::StatusOr<Proof> proof = ParseProof(payload);
  if (!proof.ok()) return HandleGarbage(c);
  const absl::optional<Refusal> refusal =
      admission_.JudgeProof(c->hello, c->hello_payload, c->nonce, *proof);
  if (!refusal.has_value()) return Join(c, proof->patience_ms);
  Refuse(c, *refusal);
  // A host that was given up may come late.
  if (refusal->reason == RefusalReason::kWorldSize &&
      !options_.ranks_come_again && admission_.knows_its_ranks()) {
    Fail(*refusal);
  }
}

void Server::HandleOfRank(Connection* c, const std::string& payload) {
  if (KindOf(payload) == MessageKind::kBye) {
    // Nobody may leave before all have come.
    c->said_bye = met_;
    return;
  }
  absl::StatusOr<StoreRequest> request = ParseRequest(payload);
  if (!met_ || !request.ok()) return HandleGarbage(c);
  keys_.Handle(c->id, *std::move(request), MeetingClock::now());
}

void Server::HandleGarbage(Connection* c) {
  constexpr char kWhat[] =
      " sent something that isn't a message of Capstan: the connection is "
      "closed";
  if (c->joined()) {
    WarnOnce(kRankGarbage, absl::StrCat(Describe(c->hello), kWhat));
  } else {
    WarnOnce(kGarbage,
             absl::StrCat(c->from, " connected to the meeting and", kWhat));
  }
  c->dead = true;
}

void Server::Refuse(Connection* c, const Refusal& refusal) {
  WarnOnce(static_cast<int>(refusal.reason),
           absl::StrCat("the meeting has refused ",
                        refusal.reason == RefusalReason::kOtherVersion
                            ? "somebody"
                            : Describe(c->hello),
                        " at ", c->from, ": ", refusal.text));
  Send(c, Encode(refusal));
  // It reads that, and closes; otherwise its time will be up. Closing here
  // could take the message back.
  c->stage = Stage::kRefused;
  shutdown(c->fd.get(), SHUT_WR);
}

void Server::Join(Connection* c, int64_t patience_ms) {
  c->stage = Stage::kJoined;
  c->input.set_max_payload(kMaxPayload);
  c->deadline = MeetingClock::now() +
                std::min(std::chrono::milliseconds(patience_ms), kMostPatience);
  Send(c, EncodeBare(MessageKind::kAdmitted));
  if (!admission_.complete()) return;
  met_ = true;
  listening_.clear();
  SendToRanks(Encode(Met{options_.host_address}));
}

void Server::Fail(const Refusal& why) {
  if (!waits()) return;
  admission_.Fail(why);
  SendToRanks(Encode(why));
}

void Server::SendToRanks(const std::string& frame) {
  for (const auto& [id, c] : connections_) {
    if (c->joined()) Send(c.get(), frame);
  }
}

void Server::Send(Connection* c, const std::string& frame) {
  c->output.append(frame);
  Flush(c);
}

void Server::Flush(Connection* c) {
  size_t sent = 0;
  while (!c->dead && sent < c->output.size()) {
    const ssize_t n = send(c->fd.get(), c->output.data() + sent,
                           c->output.size() - sent, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      c->dead = true;
    }
  }
  c->output.erase(0, sent);
}

void Server::HandleLoss(const Connection& c) {
  if (!c.joined() || c.said_bye) return;
  const std::string text = absl::StrCat(Describe(c.hello), " has left the run");
  if (met_) {
    keys_.EndWaits(text);
  } else if (options_.ranks_come_again) {
    admission_.Leave(c.hello.rank);
  } else {
    Fail({RefusalReason::kRankLost, text});
  }
}

void Server::WarnOnce(int kind, const std::string& line) {
  if (warned_.insert(kind).second) options_.warn(line);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MeetingServer>> MeetingServer::Start(
    MeetingServerOptions options, std::vector<SocketFd> listening) {
  if (options.warn == nullptr) {
    options.warn = [](const std::string& line) {
      std::cerr << absl::StrCat("WARNING: ", line, "\n");
    };
  }
  auto server =
      std::make_unique<Server>(std::move(options), std::move(listening));
  CAPSTAN_RETURN_IF_ERROR(server->StartThread());
  return server;
}

}  // namespace capstan
