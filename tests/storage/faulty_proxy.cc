// SPDX-License-Identifier: Apache-2.0
#include "tests/storage/faulty_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace capstan {
namespace {

constexpr size_t kPiece = 1 << 16;
constexpr char kBusyAnswer[] =
    "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\n"
    "Content-Length: 87\r\nConnection: close\r\n\r\n"
    "<Error><Code>SlowDown</Code><Message>Please reduce your request "
    "rate</Message>    </Error>";
constexpr char kMadeAnswer[] =
    "HTTP/1.1 200 OK\r\nETag: \"d41d8cd98f00b204e9800998ecf8427e\"\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n";

bool SendAll(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool SendAll(int fd, const std::string& bytes) {
  return SendAll(fd, bytes.data(), bytes.size());
}

// Reads up to the end of a request's header, and what came with it.
std::string ReadHeader(int fd) {
  std::string text;
  char piece[4096];
  while (!absl::StrContains(text, "\r\n\r\n")) {
    const ssize_t got = recv(fd, piece, sizeof(piece), 0);
    if (got <= 0) return "";
    text.append(piece, static_cast<size_t>(got));
  }
  return text;
}

// The connection ends as if its cable were cut.
void Reset(int fd) {
  const linger now = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    return fd;
  }
  close(fd);
  return -1;
}

// Passes bytes on in both directions until the server closes, or `most` bytes
// have passed.
void Relay(int client, int server, int64_t most, bool slow) {
  std::string piece(kPiece, '\0');
  pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
  while (most > 0 && poll(ends, 2, 60000) > 0) {
    for (int from = 0; from < 2; ++from) {
      if (ends[from].revents == 0) continue;
      const ssize_t got =
          recv(ends[from].fd, &piece[0],
               static_cast<size_t>(std::min<int64_t>(most, kPiece)), 0);
      if (got <= 0) return;
      if (slow) {
        // sleeps: the fault under test
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      if (!SendAll(ends[1 - from].fd, piece.data(), static_cast<size_t>(got))) {
        return;
      }
      most -= got;
    }
  }
}

}  // namespace

FaultyProxy::FaultyProxy(int server_port) : server_port_(server_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener_, 128), 0);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

FaultyProxy::~FaultyProxy() {
  shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  close(listener_);
  while (serving_ > 0) std::this_thread::yield();
}

void FaultyProxy::set_faults(const Faults& faults) {
  const std::lock_guard<std::mutex> lock(mutex_);
  faults_ = faults;
}

void FaultyProxy::set_filter(std::function<bool(const std::string&)> filter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  filter_ = std::move(filter);
}

void FaultyProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    ++serving_;
    std::thread([this, client] {
      Serve(client);
      close(client);
      --serving_;
    }).detach();
  }
}

FaultyProxy::Fate FaultyProxy::Draw(const std::string& line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++requests_;
  // Stores of objects take an object of a folder's name; rclone makes a file of
  // it, in which nothing can be.
  if (absl::StartsWith(line, "PUT /bucket/") &&
      absl::StrContains(line, "/ HTTP/")) {
    return Fate::kDone;
  }
  if (filter_ != nullptr && !filter_(line)) return Fate::kBusy;
  std::uniform_real_distribution<double> uniform(0, 1);
  const double drawn = uniform(random_);
  if (drawn < faults_.cut) return Fate::kCut;
  if (drawn < faults_.cut + faults_.busy) return Fate::kBusy;
  return drawn < faults_.cut + faults_.busy + faults_.slow ? Fate::kSlow
                                                           : Fate::kPass;
}

void FaultyProxy::Serve(int client) {
  std::string request = ReadHeader(client);
  if (request.empty()) return;
  const Fate fate = Draw(request.substr(0, request.find("\r\n")));
  if (fate == Fate::kDone) {
    SendAll(client, kMadeAnswer);
    return;
  }
  if (fate != Fate::kPass) ++disturbed_;
  if (fate == Fate::kBusy) {
    SendAll(client, kBusyAnswer);
    return;
  }
  const int server = Connect(server_port_);
  if (server < 0) {
    Reset(client);
    return;
  }
  // The next request comes by another connection.
  request = absl::StrReplaceAll(request, {{"Connection: keep-alive\r\n", ""}});
  request.insert(request.find("\r\n") + 2, "Connection: close\r\n");
  int64_t most = int64_t{1} << 60;
  if (fate == Fate::kCut) {
    const std::lock_guard<std::mutex> lock(mutex_);
    most = std::uniform_int_distribution<int64_t>(0, 100000)(random_);
  }
  if (SendAll(server, request)) {
    Relay(client, server, most, fate == Fate::kSlow);
  }
  if (fate == Fate::kCut) {
    Reset(client);
    Reset(server);
  }
  close(server);
}

}  // namespace capstan
