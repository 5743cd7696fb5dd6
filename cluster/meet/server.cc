// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/server.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/meet/admission.h"
#include "cluster/meet/key_table.h"
#include "cluster/meet/protocol.h"
#include "cluster/meet/wait_notes.h"

namespace capstan {
namespace {

// Connections that may be in the handshake at once, beside one for each rank.
constexpr size_t kStrangers = 256;
// The most bytes queued for a connection before its requests must wait, too.
constexpr size_t kMuchOutput = 1 << 20;
// How long the end waits for output that is under way.
constexpr std::chrono::milliseconds kFlushLimit{1000};
// A rank's patience, at most.
constexpr std::chrono::hours kMostPatience{24 * 7};

// What epoll reports: these, the listening sockets, and connections.
constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstListenId = 1;
constexpr uint64_t kFirstConnectionId = 1000;

struct Connection {
  uint64_t id = 0;
  SocketFd fd;
  std::string from;  // for messages
  enum class Stage { kNew, kChallenged, kJoined } stage = Stage::kNew;
  // Was told so, and nothing that it says is read on.
  bool refused = false;
  bool said_bye = false;
  // Is removed at the end of the round.
  bool dead = false;
  Deadline deadline;  // of the handshake

  FrameBuffer input{kMaxStrangerPayload};
  std::string output;
  size_t sent = 0;  // of output
  uint32_t events = EPOLLIN;

  Hello hello;

  std::string hello_payload;
  std::string nonce;  // of its challenge

  size_t waiting_output() const { return output.size() - sent; }
};

// Kinds of warnings, beside the reasons of refusals.
enum WarningKind { kGarbage = 1000, kRankGarbage, kSilence, kOtherMeeting };

}  // namespace

class MeetingServer::Loop {
 public:
  Loop(MeetingServerOptions options, std::vector<SocketFd> listening)
      : options_(std::move(options)),
        listening_(std::move(listening)),
        admission_(options_.world_size, options_.run_key, options_.token) {}

  // Sets *own_end to the other end of a connection.
  absl::Status Prepare(SocketFd* own_end);
  // Until Stop.
  void Run();
  // From any thread.
  void Stop();

 private:
  bool Finished();
  // For the ranks that are missing.
  bool waits() const { return !met_ && !admission_.failed(); }
  Deadline NextDeadline() const;
  void HandleDeadlines(Deadline now);
  Refusal WhenTimeIsUp() const;
  void HandleEvent(const epoll_event& event);
  void SendReady();
  // Sends what has become ready, and removes the dead.
  void Settle();

  void Accept(int listening_fd);
  absl::Status Watch(int fd, uint64_t id);
  absl::Status Add(SocketFd fd, std::string from);
  // False if nobody is in the handshake.
  bool DropOldestStranger();

  void Receive(Connection* c);
  void HandleInput(Connection* c);
  void HandleFrame(Connection* c, const std::string& payload);
  void HandleHello(Connection* c, const std::string& payload);
  void HandleAnswer(Connection* c, const std::string& payload);
  void HandleOfRank(Connection* c, const std::string& payload);
  void HandleGarbage(Connection* c);
  void Refuse(Connection* c, const Refusal& refusal);
  void Join(Connection* c, int64_t patience_ms);

  void Send(Connection* c, const std::string& frame);
  void Flush(Connection* c);
  void UpdateEvents(Connection* c);
  void Kill(Connection* c);
  void HandleLoss(const Connection& c);

  void Meet();
  void Fail(const Refusal& why);
  void WarnOnce(int kind, const std::string& line);

  const MeetingServerOptions options_;
  std::vector<SocketFd> listening_;
  Admission admission_;
  WaitNotes notes_;
  KeyTable keys_;
  SocketFd epoll_;
  SocketFd wake_;
  std::atomic<bool> stop_{false};
  absl::optional<Deadline> stop_deadline_;
  bool met_ = false;

  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t last_id_ = kFirstConnectionId;
  // In the handshake, or refused: by age.
  std::set<uint64_t> strangers_;
  // Of those who have joined, until all have: when their patience ends.
  std::set<std::pair<Deadline, uint64_t>> patience_;
  std::vector<uint64_t> dead_;
  std::set<int> warned_;
  std::vector<char> buffer_ = std::vector<char>(64 << 10);
};

absl::Status MeetingServer::Loop::Prepare(SocketFd* own_end) {
  const auto error = [](absl::string_view call) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank 0 can't serve the meeting: ", call, ": ", strerror(errno)));
  };
  AllowOpenFiles(options_.world_size + static_cast<int>(kStrangers) + 256);
  epoll_ = SocketFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return error("epoll_create1");
  wake_ = SocketFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return error("eventfd");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                 ends) != 0) {
    return error("socketpair");
  }
  *own_end = SocketFd(ends[0]);
  SocketFd other_end(ends[1]);
  CAPSTAN_RETURN_IF_ERROR(Watch(wake_.get(), kWakeId));
  for (size_t i = 0; i < listening_.size(); ++i) {
    CAPSTAN_RETURN_IF_ERROR(Watch(listening_[i].get(), kFirstListenId + i));
  }
  return Add(std::move(other_end), "rank 0's own process");
}

void MeetingServer::Loop::Stop() {
  stop_ = true;
  const uint64_t one = 1;
  // It can't be full.
  if (write(wake_.get(), &one, sizeof(one)) < 0) return;
}

void MeetingServer::Loop::Run() {
  std::vector<epoll_event> events(256);
  while (!Finished()) {
    const int n =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                   MillisecondsUntil(NextDeadline()));
    for (int i = 0; i < n; ++i) HandleEvent(events[i]);
    HandleDeadlines(MeetingClock::now());
    Settle();
  }
}

bool MeetingServer::Loop::Finished() {
  if (!stop_) return false;
  const Deadline now = MeetingClock::now();
  if (!stop_deadline_.has_value()) stop_deadline_ = now + kFlushLimit;
  if (now >= *stop_deadline_) return true;
  return std::all_of(
      connections_.begin(), connections_.end(),
      [](const auto& one) { return one.second->waiting_output() == 0; });
}

Deadline MeetingServer::Loop::NextDeadline() const {
  Deadline next = keys_.NextExpiry();
  if (!strangers_.empty()) {
    next = std::min(next, connections_.at(*strangers_.begin())->deadline);
  }
  if (!patience_.empty()) next = std::min(next, patience_.begin()->first);
  if (waits()) next = std::min(next, notes_.next());
  if (stop_deadline_.has_value()) next = std::min(next, *stop_deadline_);
  return next;
}

void MeetingServer::Loop::HandleDeadlines(Deadline now) {
  while (!strangers_.empty()) {
    Connection* const oldest = connections_.at(*strangers_.begin()).get();
    if (oldest->deadline > now) break;
    if (!oldest->refused) {
      WarnOnce(kSilence, absl::StrCat(oldest->from, " connected to the ",
                                      "meeting and didn't say who it is"));
    }
    Kill(oldest);
  }
  if (!patience_.empty() && patience_.begin()->first <= now) {
    Fail(WhenTimeIsUp());
  }
  if (waits()) {
    notes_.SayIfDue([this] {
      return absl::StrCat("waiting for the other ranks at ", options_.where,
                          " (", admission_.WhoIsMissing(), ")");
    });
  }
  keys_.Expire(now);
}

Refusal MeetingServer::Loop::WhenTimeIsUp() const {
  const std::vector<int> gone =
      admission_.MissingHosts(options_.ranks_per_host);
  const std::string list = absl::StrJoin(gone, ",");
  const int left = options_.world_size -
                   static_cast<int>(gone.size()) * options_.ranks_per_host;
  if (options_.least_ranks == 0 || left < options_.least_ranks ||
      list.size() >= kMaxTextBytes) {
    return {RefusalReason::kTimedOut, admission_.Missing()};
  }
  return {RefusalReason::kHostsGone, list};
}

void MeetingServer::Loop::HandleEvent(const epoll_event& event) {
  const uint64_t id = event.data.u64;
  if (id == kWakeId) {
    uint64_t count = 0;
    if (read(wake_.get(), &count, sizeof(count)) < 0) return;
    return;
  }
  if (id < kFirstConnectionId) {
    // All may have come in this very round.
    const size_t index = id - kFirstListenId;
    if (index < listening_.size()) Accept(listening_[index].get());
    return;
  }
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection* const c = found->second.get();
  if (!c->dead && (event.events & EPOLLOUT) != 0) {
    Flush(c);
    // Requests may have waited for that.
    HandleInput(c);
  }
  if (!c->dead && (event.events & ~uint32_t{EPOLLOUT}) != 0) Receive(c);
}

void MeetingServer::Loop::SendReady() {
  for (const KeyTable::Ready& ready : keys_.TakeReady()) {
    const auto found = connections_.find(ready.client);
    if (found == connections_.end()) continue;
    Send(found->second.get(), Encode(ready.response));
  }
}

void MeetingServer::Loop::Settle() {
  while (true) {
    SendReady();
    if (dead_.empty()) return;
    for (const uint64_t id : std::exchange(dead_, {})) {
      const auto found = connections_.find(id);
      const std::unique_ptr<Connection> c = std::move(found->second);
      connections_.erase(found);
      keys_.Forget(id);
      HandleLoss(*c);
    }
  }
}

absl::Status MeetingServer::Loop::Watch(int fd, uint64_t id) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "rank 0 can't serve the meeting: epoll_ctl: ", strerror(errno)));
}

void MeetingServer::Loop::Accept(int listening_fd) {
  // Not for ever: others want their turn.
  for (int i = 0; i < 64; ++i) {
    SocketFd fd(
        accept4(listening_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      SetUpConnection(fd.get());
      const std::string from = SocketAddress::OtherEnd(fd.get()).text();
      // Drop a peer for which the system has no memory.
      if (Add(std::move(fd), from).ok() &&
          strangers_.size() > options_.world_size + kStrangers) {
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
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF ||
        errno == EINVAL) {
      return;
    }
  }
}

absl::Status MeetingServer::Loop::Add(SocketFd fd, std::string from) {
  auto c = std::make_unique<Connection>();
  c->id = ++last_id_;
  c->from = std::move(from);
  c->deadline = MeetingClock::now() + options_.handshake_limit;
  CAPSTAN_RETURN_IF_ERROR(Watch(fd.get(), c->id));
  c->fd = std::move(fd);
  strangers_.insert(c->id);
  connections_.emplace(c->id, std::move(c));
  return absl::OkStatus();
}

bool MeetingServer::Loop::DropOldestStranger() {
  if (strangers_.empty()) return false;
  Kill(connections_.at(*strangers_.begin()).get());
  return true;
}

void MeetingServer::Loop::Receive(Connection* c) {
  const ssize_t n = recv(c->fd.get(), buffer_.data(), buffer_.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return;
  }
  if (n <= 0) {
    Kill(c);
    return;
  }
  if (c->refused) return;
  c->input.Append(absl::string_view(buffer_.data(), static_cast<size_t>(n)));
  HandleInput(c);
}

void MeetingServer::Loop::HandleInput(Connection* c) {
  while (!c->dead && !c->refused && c->waiting_output() < kMuchOutput) {
    const auto payload = c->input.Next();
    if (!payload.ok()) {
      HandleGarbage(c);
      return;
    }
    if (!payload->has_value()) break;
    HandleFrame(c, **payload);
    // So that the loop sees how much output there is.
    SendReady();
  }
  if (!c->dead) UpdateEvents(c);
}

void MeetingServer::Loop::HandleFrame(Connection* c,
                                      const std::string& payload) {
  switch (c->stage) {
    case Connection::Stage::kNew:
      HandleHello(c, payload);
      return;
    case Connection::Stage::kChallenged:
      HandleAnswer(c, payload);
      return;
    case Connection::Stage::kJoined:
      HandleOfRank(c, payload);
      return;
  }
}

void MeetingServer::Loop::HandleHello(Connection* c,
                                      const std::string& payload) {
  absl::StatusOr<Hello> hello = ParseHello(payload);
  if (!hello.ok()) {
    HandleGarbage(c);
    return;
  }
  c->hello = *std::move(hello);
  const absl::optional<Refusal> refusal = admission_.JudgeHello(c->hello);
  if (refusal.has_value()) {
    Refuse(c, *refusal);
    return;
  }
  const Challenge challenge = admission_.ChallengeFor(payload);
  c->hello_payload = payload;
  c->nonce = challenge.nonce;
  c->stage = Connection::Stage::kChallenged;
  Send(c, Encode(challenge));
}

void MeetingServer::Loop::HandleAnswer(Connection* c,
                                       const std::string& payload) {
  if (KindOf(payload) == MessageKind::kRefusal) {
    const absl::StatusOr<Refusal> theirs = ParseRefusal(payload);
    if (theirs.ok()) {
      WarnOnce(kOtherMeeting,
               absl::StrCat(Describe(c->hello), " at ", c->from,
                            " came to the meeting and left: ", theirs->text));
    }
    Kill(c);
    return;
  }
  const absl::StatusOr<Proof> proof = ParseProof(payload);
  if (!proof.ok()) {
    HandleGarbage(c);
    return;
  }
  const absl::optional<Refusal> refusal =
      admission_.JudgeProof(c->hello, c->hello_payload, c->nonce, *proof);
  if (!refusal.has_value()) {
    Join(c, proof->patience_ms);
    return;
  }
  Refuse(c, *refusal);
  // A host that was given up may come late.
  if (refusal->reason == RefusalReason::kWorldSize && !met_ &&
      !options_.ranks_come_again && admission_.knows_its_ranks()) {
    Fail(*refusal);
  }
}

void MeetingServer::Loop::HandleOfRank(Connection* c,
                                       const std::string& payload) {
  if (KindOf(payload) == MessageKind::kBye) {
    // Nobody may leave before all have come.
    c->said_bye = met_;
    return;
  }
  absl::StatusOr<StoreRequest> request = ParseRequest(payload);
  if (!met_ || !request.ok()) {
    HandleGarbage(c);
    return;
  }
  keys_.Handle(c->id, *std::move(request), MeetingClock::now());
}

void MeetingServer::Loop::HandleGarbage(Connection* c) {
  constexpr char kWhat[] =
      " sent something that isn't a message of Capstan: the connection is "
      "closed";
  if (c->stage == Connection::Stage::kJoined) {
    WarnOnce(kRankGarbage, absl::StrCat(Describe(c->hello), kWhat));
  } else {
    WarnOnce(kGarbage,
             absl::StrCat(c->from, " connected to the meeting and", kWhat));
  }
  Kill(c);
}

void MeetingServer::Loop::Refuse(Connection* c, const Refusal& refusal) {
  WarnOnce(static_cast<int>(refusal.reason),
           absl::StrCat("the meeting has refused ",
                        refusal.reason == RefusalReason::kOtherVersion
                            ? "somebody"
                            : Describe(c->hello),
                        " at ", c->from, ": ", refusal.text));
  Send(c, Encode(refusal));
  if (c->dead) return;
  // It reads that, and closes; otherwise its time will be up. Closing here
  // could take the message back.
  c->refused = true;
  shutdown(c->fd.get(), SHUT_WR);
}

void MeetingServer::Loop::Join(Connection* c, int64_t patience_ms) {
  strangers_.erase(c->id);
  c->stage = Connection::Stage::kJoined;
  c->input.set_max_payload(kMaxPayload);
  c->nonce.clear();
  c->hello_payload.clear();
  const std::chrono::milliseconds patience(std::min<int64_t>(
      patience_ms,
      std::chrono::duration_cast<std::chrono::milliseconds>(kMostPatience)
          .count()));
  patience_.insert({MeetingClock::now() + patience, c->id});
  Send(c, EncodeBare(MessageKind::kAdmitted));
  if (admission_.complete()) Meet();
}

void MeetingServer::Loop::Meet() {
  met_ = true;
  patience_.clear();
  for (SocketFd& fd : listening_) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
  }
  listening_.clear();
  const std::string frame = Encode(Met{options_.host_address});
  for (const auto& [id, c] : connections_) {
    if (c->stage == Connection::Stage::kJoined) Send(c.get(), frame);
  }
}

void MeetingServer::Loop::Fail(const Refusal& why) {
  if (met_ || admission_.failed()) return;
  admission_.Fail(why);
  patience_.clear();
  const std::string frame = Encode(why);
  for (const auto& [id, c] : connections_) {
    if (c->stage == Connection::Stage::kJoined) Send(c.get(), frame);
  }
}

void MeetingServer::Loop::Send(Connection* c, const std::string& frame) {
  if (c->dead) return;
  c->output.append(frame);
  Flush(c);
  if (!c->dead) UpdateEvents(c);
}

void MeetingServer::Loop::Flush(Connection* c) {
  while (c->waiting_output() > 0) {
    const ssize_t n = send(c->fd.get(), c->output.data() + c->sent,
                           c->waiting_output(), MSG_NOSIGNAL);
    if (n >= 0) {
      c->sent += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) Kill(c);
    if (c->sent > kMuchOutput) {
      c->output.erase(0, c->sent);
      c->sent = 0;
    }
    return;
  }
  c->output.clear();
  c->sent = 0;
}

void MeetingServer::Loop::UpdateEvents(Connection* c) {
  const size_t waiting = c->waiting_output();
  const uint32_t events =
      (waiting < kMuchOutput ? uint32_t{EPOLLIN} : uint32_t{0}) |
      (waiting > 0 ? uint32_t{EPOLLOUT} : uint32_t{0});
  if (events == c->events) return;
  c->events = events;
  epoll_event event = {};
  event.events = events;
  event.data.u64 = c->id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c->fd.get(), &event) != 0) {
    Kill(c);
  }
}

void MeetingServer::Loop::Kill(Connection* c) {
  if (c->dead) return;
  c->dead = true;
  dead_.push_back(c->id);
  strangers_.erase(c->id);
}

void MeetingServer::Loop::HandleLoss(const Connection& c) {
  if (c.stage != Connection::Stage::kJoined || c.said_bye) return;
  const std::string text = absl::StrCat(Describe(c.hello), " has left the run");
  if (met_) {
    keys_.EndWaits(text);
  } else if (options_.ranks_come_again) {
    const auto its = std::find_if(
        patience_.begin(), patience_.end(),
        [&c](const auto& patience) { return patience.second == c.id; });
    if (its != patience_.end()) patience_.erase(its);
    admission_.Leave(c.hello.rank);
  } else {
    Fail({RefusalReason::kRankLost, text});
  }
}

void MeetingServer::Loop::WarnOnce(int kind, const std::string& line) {
  if (warned_.insert(kind).second) options_.warn(line);
}

MeetingServer::MeetingServer() = default;

absl::StatusOr<std::unique_ptr<MeetingServer>> MeetingServer::Start(
    MeetingServerOptions options, std::vector<SocketFd> listening) {
  if (options.warn == nullptr) {
    options.warn = [](const std::string& line) {
      std::cerr << absl::StrCat("WARNING: ", line, "\n");
    };
  }
  auto server = absl::WrapUnique(new MeetingServer);
  server->loop_ =
      std::make_unique<Loop>(std::move(options), std::move(listening));
  CAPSTAN_RETURN_IF_ERROR(server->loop_->Prepare(&server->own_end_));
  // Signals are for the other threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  server->thread_ = std::thread([loop = server->loop_.get()] { loop->Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return server;
}

MeetingServer::~MeetingServer() {
  if (!thread_.joinable()) return;
  loop_->Stop();
  thread_.join();
}

}  // namespace capstan
