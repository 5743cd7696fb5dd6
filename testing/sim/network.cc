// SPDX-License-Identifier: Apache-2.0
#include "testing/sim/network.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <utility>

namespace capstan::sim {
namespace {

constexpr size_t kWindow = 256 << 10;
constexpr Time kFirstRetry = 200 * kMillisecond;
constexpr Time kMostRetry = 120 * kSecond;
// After net.ipv4.tcp_retries2 and tcp_syn_retries.
constexpr Time kDataPatience = 924 * kSecond;
constexpr Time kConnectPatience = 130 * kSecond;

constexpr uint32_t kLoopback = (127u << 24) + 1;

// Of one world: sockets that live, and who listens where.
struct Table {
  World* world = nullptr;
  std::map<uint64_t, Socket*> sockets;
  uint64_t next = 0;
  std::map<std::pair<int, int>, Socket*> listening;  // by host and port
};
Table& TheTable() {
  static auto* const table = new Table;
  if (table->world != TheWorld()) {
    *table = Table();
    table->world = TheWorld();
  }
  return *table;
}

Host* HostAt(uint32_t address, Host* from) {
  if (address >> 24 == 127) return from;
  const int64_t index = static_cast<int64_t>(address) - (10 << 24) - 1;
  if (index < 0 || index >= TheWorld()->hosts()) return nullptr;
  return &TheWorld()->host(static_cast<int>(index));
}

}  // namespace

Socket::Socket(Host* host, int type) : host_(host), type_(type) {
  number_ = TheTable().next++;
  TheTable().sockets.emplace(number_, this);
}

Socket::~Socket() {
  World& world = *TheWorld();
  Table& table = TheTable();
  table.sockets.erase(number_);
  const auto here = table.listening.find({host_->index, own.port});
  if (here != table.listening.end() && here->second == this) {
    table.listening.erase(here);
  }
  if (world.ending()) return;
  // Those that nobody has accepted end with it, by their own destructors.
  if (state_ != kConnected || vanished_ || output_ended_) {
    if (vanished_) {
      for (const auto& one : backlog_) one->Vanish();
    }
    if (!vanished_ && state_ == kConnected && !input_.empty()) ResetOther();
    return;
  }
  // Unread bytes reset the connection; otherwise it ends after what is under
  // way, which needs no socket any more.
  const std::shared_ptr<Socket> peer = peer_.lock();
  if (peer == nullptr) return;
  if (!input_.empty()) {
    ResetOther();
    return;
  }
  auto rest = std::make_shared<std::deque<Segment>>(std::move(under_way_));
  rest->push_back({"", true, world.now()});
  const Time arrival = std::max(world.now() + Latency(), last_arrival_);
  world.At(arrival, [rest, peer = peer_, from = host_->index] {
    DeliverRest(rest, peer, from, kFirstRetry);
  });
}

void Socket::DeliverRest(const std::shared_ptr<std::deque<Segment>>& rest,
                         const std::weak_ptr<Socket>& peer, int from,
                         Time retry) {
  const std::shared_ptr<Socket> to = peer.lock();
  if (to == nullptr || to->state_ != kConnected) return;
  if (!TheWorld()->Reachable(from, to->host_->index)) {
    TheWorld()->After(retry, [=] {
      DeliverRest(rest, peer, from, std::min(2 * retry, kMostRetry));
    });
    return;
  }
  for (const Segment& one : *rest) to->input_ += one.bytes;
  to->input_ended_ = true;
  to->changed.WakeAll();
}

Time Socket::Latency() const {
  Random& random = TheWorld()->random();
  if (peer_host_ == host_) return random.Between(5, 60) * kMicrosecond;
  // Now and then a packet is lost, and sent again.
  const Time lost = random.OneIn(200) ? kFirstRetry : 0;
  return lost + random.Between(20, 400) * kMicrosecond;
}

bool Socket::Reaches() const {
  return peer_host_ != nullptr &&
         TheWorld()->Reachable(host_->index, peer_host_->index);
}

int Socket::Stat(struct stat* info) {
  *info = {};
  info->st_mode = S_IFSOCK | 0600;
  return 0;
}

int Socket::Bind(const Address& address) {
  const Host* const host = HostAt(address.host, host_);
  if (address.host != 0 && host != host_) return -EADDRNOTAVAIL;
  own = address;
  if (own.port == 0) own.port = host_->next_port++;
  return TheTable().listening.count({host_->index, own.port}) > 0 ? -EADDRINUSE
                                                                  : 0;
}

int Socket::Listen() {
  const auto added = TheTable().listening.emplace(
      std::make_pair(host_->index, own.port), this);
  if (!added.second) return -EADDRINUSE;
  state_ = kListening;
  return 0;
}

int Socket::Connect(const Address& address) {
  peer_host_ = HostAt(address.host, host_);
  other = address;
  own.host = address.host >> 24 == 127 ? kLoopback : host_->address;
  if (type_ == SOCK_DGRAM) {
    own.port = host_->next_port++;
    return 0;
  }
  if (peer_host_ == nullptr) return -ENETUNREACH;
  own.port = host_->next_port++;
  state_ = kConnecting;
  const std::weak_ptr<Socket> me = shared_from_this();
  TheWorld()->After(kConnectPatience, [me] {
    const std::shared_ptr<Socket> socket = me.lock();
    if (socket != nullptr && socket->state_ == kConnecting) {
      socket->Break(ETIMEDOUT);
    }
  });
  SendSyn(kSecond);
  return -EINPROGRESS;
}

void Socket::SendSyn(Time retry) {
  const std::weak_ptr<Socket> me = shared_from_this();
  TheWorld()->After(Latency(), [me, retry] {
    const std::shared_ptr<Socket> socket = me.lock();
    if (socket == nullptr || socket->state_ != kConnecting) return;
    if (!socket->Reaches()) {
      TheWorld()->After(retry, [me, retry] {
        const std::shared_ptr<Socket> again = me.lock();
        if (again != nullptr) again->SendSyn(2 * retry);
      });
      return;
    }
    const auto& listening = TheTable().listening;
    const auto found =
        listening.find({socket->peer_host_->index, socket->other.port});
    Socket* const listener = found == listening.end() ? nullptr : found->second;
    const bool heard =
        listener != nullptr &&
        (listener->own.host == 0 || listener->own.host == socket->other.host);
    if (!heard) return socket->Break(ECONNREFUSED);
    auto accepted = std::make_shared<Socket>(listener->host_, SOCK_STREAM);
    accepted->state_ = kConnected;
    accepted->own = socket->other;
    accepted->other = socket->own;
    accepted->peer_ = me;
    accepted->peer_host_ = socket->host_;
    socket->peer_ = accepted;
    listener->backlog_.push_back(std::move(accepted));
    listener->changed.WakeAll();
    TheWorld()->After(socket->Latency(), [me] {
      const std::shared_ptr<Socket> done = me.lock();
      if (done == nullptr || done->state_ != kConnecting) return;
      done->state_ = kConnected;
      done->changed.WakeAll();
      done->WatchSilence();
    });
  });
}

std::shared_ptr<Socket> Socket::Accept() {
  if (backlog_.empty()) return nullptr;
  std::shared_ptr<Socket> accepted = std::move(backlog_.front());
  backlog_.pop_front();
  return accepted;
}

ssize_t Socket::Peek(char* out, size_t size) const {
  if (input_.empty()) {
    if (error_ != 0) return -error_;
    return input_ended_ ? 0 : -EAGAIN;
  }
  const size_t n = std::min(size, input_.size());
  memcpy(out, input_.data(), n);
  return static_cast<ssize_t>(n);
}

ssize_t Socket::Read(char* out, size_t size) {
  if (state_ == kNew || state_ == kConnecting) return -ENOTCONN;
  if (input_.empty() && error_ != 0) return -TakeError();
  const ssize_t n = Peek(out, size);
  if (n > 0) {
    input_.erase(0, static_cast<size_t>(n));
    // Its window opens.
    if (const auto peer = peer_.lock()) peer->changed.WakeAll();
  }
  return n;
}

ssize_t Socket::Write(const char* bytes, size_t size) {
  if (error_ != 0) return -TakeError();
  if (state_ == kBroken || output_ended_) return -EPIPE;
  if (state_ != kConnected) return -ENOTCONN;
  const std::shared_ptr<Socket> peer = peer_.lock();
  const size_t used =
      under_way_bytes_ + (peer == nullptr ? 0 : peer->input_.size());
  if (used >= kWindow) return -EAGAIN;
  const size_t n = std::min(size, kWindow - used);
  Send({std::string(bytes, n), false, TheWorld()->now()});
  return static_cast<ssize_t>(n);
}

void Socket::Send(Segment segment) {
  World& world = *TheWorld();
  under_way_bytes_ += segment.bytes.size();
  under_way_.push_back(std::move(segment));
  if (delivering_) return;
  delivering_ = true;
  last_arrival_ = std::max(world.now() + Latency(), last_arrival_);
  const std::weak_ptr<Socket> me = shared_from_this();
  world.At(last_arrival_, [me] {
    if (const auto socket = me.lock()) socket->Deliver(kFirstRetry);
  });
}

void Socket::Deliver(Time retry) {
  World& world = *TheWorld();
  delivering_ = false;
  if (state_ != kConnected || under_way_.empty()) return;
  const std::weak_ptr<Socket> me = shared_from_this();
  if (!Reaches()) {
    if (world.now() - under_way_.front().sent > kDataPatience) {
      return Break(ETIMEDOUT);
    }
    delivering_ = true;
    world.After(retry, [me, retry] {
      if (const auto socket = me.lock()) {
        socket->Deliver(std::min(2 * retry, kMostRetry));
      }
    });
    return;
  }
  const std::shared_ptr<Socket> peer = peer_.lock();
  if (peer == nullptr || peer->state_ != kConnected) {
    // Nobody has that socket: it says so.
    world.After(Latency(), [me] {
      if (const auto socket = me.lock()) socket->Break(ECONNRESET);
    });
    return;
  }
  for (const Segment& segment : under_way_) {
    peer->input_ += segment.bytes;
    peer->input_ended_ |= segment.end;
  }
  under_way_.clear();
  under_way_bytes_ = 0;
  peer->changed.WakeAll();
  changed.WakeAll();
}

int Socket::Shutdown(int how) {
  if (state_ != kConnected) return -ENOTCONN;
  if (how != SHUT_RD && !output_ended_) {
    Send({"", true, TheWorld()->now()});
    output_ended_ = true;
  }
  if (how != SHUT_WR) input_ended_ = true;
  changed.WakeAll();
  return 0;
}

void Socket::Break(int error) {
  if (state_ == kBroken) return;
  state_ = kBroken;
  error_ = error;
  under_way_.clear();
  changed.WakeAll();
}

void Socket::ResetOther() {
  TheWorld()->After(Latency(), [peer = peer_, from = host_->index] {
    const std::shared_ptr<Socket> to = peer.lock();
    if (to != nullptr && TheWorld()->Reachable(from, to->host_->index)) {
      to->Break(ECONNRESET);
    }
  });
}

int Socket::TakeError() { return std::exchange(error_, 0); }

int Socket::Ready() {
  switch (state_) {
    case kNew:
      return POLLOUT | POLLHUP;
    case kListening:
      return backlog_.empty() ? 0 : POLLIN;
    case kConnecting:
      return 0;
    case kBroken:
      return POLLIN | POLLOUT | POLLERR | POLLHUP;
    case kConnected:
      break;
  }
  const std::shared_ptr<Socket> peer = peer_.lock();
  const size_t used =
      under_way_bytes_ + (peer == nullptr ? 0 : peer->input_.size());
  return (input_.empty() && !input_ended_ ? 0 : POLLIN) |
         (used < kWindow ? POLLOUT : 0) |
         (input_ended_ && output_ended_ ? POLLHUP : 0);
}

void Socket::SetKeepAlive(int option, int value) {
  if (option == SO_KEEPALIVE) keep_alive_ = value != 0;
  if (option == TCP_KEEPIDLE) idle_ = value;
  if (option == TCP_KEEPINTVL) interval_ = value;
  if (option == TCP_KEEPCNT) probes_ = value;
  if (state_ == kConnected) WatchSilence();
}

void Socket::WatchSilence() {
  World& world = *TheWorld();
  if (!keep_alive_ || peer_host_ == nullptr || state_ != kConnected) return;
  const std::weak_ptr<Socket> me = shared_from_this();
  const Time limit = (idle_ + int64_t{interval_} * probes_) * kSecond;
  if (Reaches()) {
    // A host that has come back knows nothing of this connection.
    if (peer_.lock() == nullptr && !input_ended_ && under_way_.empty()) {
      world.After(idle_ * kSecond, [me] {
        const auto socket = me.lock();
        if (socket != nullptr && socket->Reaches() && !socket->input_ended_) {
          socket->Break(ECONNRESET);
        }
      });
    }
    return;
  }
  const Time since = world.unreachable_since(host_->index, peer_host_->index);
  world.After(limit, [me, since] {
    const auto socket = me.lock();
    if (socket == nullptr || socket->state_ != kConnected) return;
    if (socket->Reaches()) return socket->WatchSilence();
    const Time then = TheWorld()->unreachable_since(socket->host_->index,
                                                    socket->peer_host_->index);
    // With bytes under way, the kernel waits longer.
    if (then == since && socket->under_way_.empty()) {
      socket->Break(ETIMEDOUT);
    }
  });
}

void NoteUnreachable(int a, int b) {
  std::vector<std::shared_ptr<Socket>> all;
  for (const auto& [number, socket] : TheTable().sockets) {
    if (socket->peer_host_ == nullptr || !socket->keep_alive_) continue;
    const int from = socket->host_->index;
    const int to = socket->peer_host_->index;
    if (std::minmax(from, to) == std::minmax(a, b)) {
      if (auto held = socket->weak_from_this().lock()) {
        all.push_back(std::move(held));
      }
    }
  }
  for (const auto& socket : all) socket->WatchSilence();
}

}  // namespace capstan::sim
