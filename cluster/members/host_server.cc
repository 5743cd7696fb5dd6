// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/host_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace capstan {
namespace {

// Connections that may be in the handshake at once.
constexpr size_t kStrangers = 64;
// How long one may take.
constexpr std::chrono::seconds kHandshake{10};

}  // namespace

void WatchSocket(int epoll, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

void NoticeSilentHost(int fd, std::chrono::milliseconds limit) {
  NoticeSilence(fd, limit);
  const auto ms = static_cast<unsigned>(limit.count());
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

void HostServer::Listen(SocketFd listening) {
  if (listening_.empty()) address_ = SocketAddress::OwnEnd(listening.get());
  WatchSocket(epoll_, listening.get());
  listening_.push_back(std::move(listening));
}

void HostServer::Accept(int listening) {
  SocketFd fd(
      accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return;
  const auto strangers =
      std::count_if(peers_.begin(), peers_.end(),
                    [](const auto& one) { return !one.second.proved; });
  if (strangers >= static_cast<int64_t>(kStrangers)) return;
  SetUpConnection(fd.get());
  NoticeSilentHost(fd.get(), silence_);
  const int number = fd.get();
  Peer& peer = peers_[number];
  peer.connection = std::make_unique<HostConnection>(std::move(fd));
  peer.until = MeetingClock::now() + kHandshake;
}

void HostServer::Handle(
    int fd, const std::function<void(Peer*, const HostMessage&)>& message) {
  for (const SocketFd& listening : listening_) {
    if (listening.get() != fd) continue;
    return Accept(fd);
  }
  const auto found = peers_.find(fd);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  peer.connection->Flush();
  peer.connection->Receive();
  while (true) {
    if (peer.proved) {
      const absl::optional<HostMessage> next = peer.connection->NextMessage();
      if (!next.has_value()) return;
      message(&peer, *next);
      // Which may have closed everything.
      if (peers_.count(fd) == 0) return;
    } else {
      const absl::optional<std::string> payload = peer.connection->Next();
      if (!payload.has_value()) return;
      peer.proved = peer.handshake.Answer(*payload, run_key_, token_,
                                          peer.connection.get());
    }
  }
}

std::vector<std::pair<std::string, bool>> HostServer::TakeLost(Deadline now) {
  std::vector<std::pair<std::string, bool>> lost;
  for (auto next = peers_.begin(); next != peers_.end();) {
    const Peer& peer = next->second;
    const bool late = !peer.proved && now >= peer.until;
    if (peer.connection->alive() && !late) {
      ++next;
      continue;
    }
    if (!peer.id.empty()) lost.emplace_back(peer.id, peer.connection->silent());
    next = peers_.erase(next);
  }
  return lost;
}

void HostServer::Watch() {
  for (const auto& [fd, peer] : peers_) peer.connection->Watch(epoll_);
}

Deadline HostServer::next_event() const {
  Deadline next = Deadline::max();
  for (const auto& [fd, peer] : peers_) {
    if (!peer.proved) next = std::min(next, peer.until);
    // To be removed.
    if (!peer.connection->alive()) next = MeetingClock::now();
  }
  return next;
}

void HostServer::ForEach(const std::function<void(Peer*)>& fn) {
  for (auto& [fd, peer] : peers_) {
    if (!peer.id.empty()) fn(&peer);
  }
}

HostServer::Peer* HostServer::Find(const std::string& id) {
  for (auto& [fd, peer] : peers_) {
    if (peer.id == id) return &peer;
  }
  return nullptr;
}

void HostServer::Enrol(Peer* peer, const std::string& id, int port) {
  Peer* const older = Find(id);
  if (older != nullptr && older != peer) {
    older->id.clear();
    older->connection->Close();
  }
  peer->id = id;
  peer->port = port;
}

void HostServer::Close() {
  peers_.clear();
  listening_.clear();
}

void HostServer::CloseInChild() const {
  for (const SocketFd& fd : listening_) close(fd.get());
  for (const auto& [fd, peer] : peers_) close(fd);
}

}  // namespace capstan
