// SPDX-License-Identifier: Apache-2.0
#include "desk/http/connections.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A connection without a request is kept no longer, as a stop waits for it.
constexpr std::chrono::seconds kKeepAlive{1};
// For a client that sends, or takes, nothing at all.
constexpr milliseconds kSilence{10000};
// For a client to take the last answer before its connection is closed: what it
// has sent in vain by then would have its system throw the answer away.
constexpr milliseconds kFarewell{1000};
constexpr uint64_t kMostHeadBytes = 64 << 10;

// A thread for each connection, up to `most`: the next one then waits to be
// accepted. (The library's own pool has a fixed number of threads, each of
// which an answer of events would hold.)
class ThreadPerConnection : public httplib::TaskQueue {
 public:
  explicit ThreadPerConnection(size_t most) : most_(most) {}

  // Newer versions of the library want to know whether it was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));
  Taken enqueue(std::function<void()> serve) override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return running_ < most_; });
    ++running_;
    lock.unlock();
    const auto run = [this, serve = std::move(serve)] {
      serve();
      std::lock_guard<std::mutex> lock(mutex_);
      --running_;
      changed_.notify_all();
    };
    try {
      std::thread(run).detach();
    } catch (const std::system_error&) {
      // No further thread may be started: by this one, then, before it accepts
      // the next connection. (Older versions of the library can't be told to
      // close it.)
      run();
    }
    return Taken(true);
  }
  void shutdown() override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t running_ = 0;
};

// Whether `events` come within `limit`.
bool Wait(socket_t socket, short events, milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    pollfd waiting = {socket, events, 0};
    const int ready = poll(
        &waiting, 1, static_cast<int>(std::max(left, milliseconds(0)).count()));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

// Nobody here asks for addresses. (Older versions of the library don't ask for
// the local one, which therefore can't be marked as overriding theirs.)
class StreamOfNoAddress : public httplib::Stream {
 public:
  void get_remote_ip_and_port(std::string&, int&) const {}
  void get_local_ip_and_port(std::string&, int&) const {}
};

// What the library reads requests from and writes answers to.
class ClientStream final : public StreamOfNoAddress {
 public:
  ClientStream(socket_t socket, milliseconds patience)
      : socket_(socket), patience_(patience) {}

  // Whether a next request begins in time.
  bool Begin() {
    waited_ = Clock::duration(0);
    left_ = kMostHeadBytes;
    framed_ = false;
    return begin_ < end_ || Wait(socket_, POLLIN, kKeepAlive);
  }
  // Of the request whose head has been read.
  void BeginBody(const BodyFrame& frame, size_t most_bytes) {
    framed_ = frame.problem.empty();
    chunked_ = frame.chunked;
    left_ = chunked_ ? most_bytes : frame.bytes;
  }
  // Whether the next request begins behind what has been read.
  bool IsAtEnd() const { return framed_ && !chunked_ && left_ == 0; }

  bool is_readable() const override { return begin_ < end_ || Await(POLLIN); }
  bool is_writable() const override { return Await(POLLOUT); }

  ssize_t read(char* to, size_t size) override {
    if (left_ == 0) return 0;
    if (begin_ == end_) {
      if (!Await(POLLIN)) return -1;
      const ssize_t count = recv(socket_, bytes_.data(), bytes_.size(), 0);
      if (count <= 0) return count;
      begin_ = 0;
      end_ = static_cast<size_t>(count);
    }
    const size_t count =
        static_cast<size_t>(std::min<uint64_t>({size, end_ - begin_, left_}));
    std::memcpy(to, bytes_.data() + begin_, count);
    begin_ += count;
    left_ -= count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, size_t size) override {
    if (!Await(POLLOUT)) return -1;
    return send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  socket_t socket() const override { return socket_; }

 private:
  // For the client, as long as there is patience.
  bool Await(short events) const {
    const Clock::time_point begin = Clock::now();
    const auto left = std::chrono::ceil<milliseconds>(patience_ - waited_);
    const bool ready = Wait(socket_, events, std::min(kSilence, left));
    waited_ += Clock::now() - begin;
    return ready && waited_ < patience_;
  }

  const socket_t socket_;
  const milliseconds patience_;
  mutable Clock::duration waited_{0};  // of this request
  uint64_t left_ = 0;                  // bytes of it that may be read
  bool framed_ = false;
  bool chunked_ = false;
  size_t begin_ = 0, end_ = 0;  // of what has come and isn't read
  std::array<char, 16384> bytes_;
};

// Before the connection of a client that may still be sending is closed.
void SayFarewell(socket_t socket) {
  shutdown(socket, SHUT_WR);
  const Clock::time_point end = Clock::now() + kFarewell;
  std::array<char, 16384> bytes;
  for (Clock::time_point now = Clock::now(); now < end; now = Clock::now()) {
    if (!Wait(socket, POLLIN, std::chrono::ceil<milliseconds>(end - now)) ||
        recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT) <= 0) {
      return;
    }
  }
}

using SetUp = std::function<void(httplib::Request&)>;

// Has the library answer a request.
bool Process(bool (httplib::Server::*process)(httplib::Stream&, bool, bool&,
                                              const SetUp&),
             httplib::Server* server, httplib::Stream* stream, bool* last,
             const SetUp& set_up) {
  return (server->*process)(*stream, *last, *last, set_up);
}
// Newer versions want the addresses.
[[maybe_unused]] bool Process(
    bool (httplib::Server::*process)(httplib::Stream&, const std::string&, int,
                                     const std::string&, int, bool, bool&,
                                     const SetUp&),
    httplib::Server* server, httplib::Stream* stream, bool* last,
    const SetUp& set_up) {
  return (server->*process)(*stream, "", 0, "", 0, *last, *last, set_up);
}

}  // namespace

BodyFrame BodyFrameOf(const httplib::Request& request) {
  BodyFrame frame;
  for (const auto& [name, value] : request.headers) {
    if (name.find_first_of(" \t") != name.npos) {
      frame.problem = "a header's name has white space";
    }
  }
  const size_t lengths = request.get_header_value_count("Content-Length");
  const size_t encodings = request.get_header_value_count("Transfer-Encoding");
  if (lengths + encodings > 1) {
    frame.problem =
        "Content-Length and Transfer-Encoding may be given once, not both";
  } else if (encodings == 1) {
    frame.chunked = true;
    if (!absl::EqualsIgnoreCase(request.get_header_value("Transfer-Encoding"),
                                "chunked")) {
      frame.problem = "Transfer-Encoding can only be chunked";
    }
  } else if (lengths == 1) {
    const std::string length = request.get_header_value("Content-Length");
    const bool digits =
        std::all_of(length.begin(), length.end(), absl::ascii_isdigit);
    if (!digits || !absl::SimpleAtoi(length, &frame.bytes)) {
      frame.problem = "Content-Length must be a number";
    }
  }
  return frame;
}

ConnectionServer::ConnectionServer(const ConnectionLimits& limits)
    : limits_(limits) {
  new_task_queue = [this] { return new ThreadPerConnection(limits_.most); };
  set_tcp_nodelay(true);
  set_keep_alive_timeout(kKeepAlive.count());  // which clients are told
  set_payload_max_length(limits.most_bytes);
}

void ConnectionServer::EndConnections() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const socket_t socket : sockets_) shutdown(socket, SHUT_RDWR);
}

bool ConnectionServer::process_and_close_socket(socket_t socket) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sockets_.insert(socket);
  }
  if (Answer(socket)) SayFarewell(socket);
  const std::lock_guard<std::mutex> lock(mutex_);
  sockets_.erase(socket);
  return close(socket) == 0;
}

bool ConnectionServer::Answer(socket_t socket) {
  ClientStream stream(socket, limits_.patience);
  for (size_t left = keep_alive_max_count_; svr_sock_ != INVALID_SOCKET;
       --left) {
    if (!stream.Begin()) return false;
    bool last = left <= 1;
    const bool answered =
        Process(&ConnectionServer::process_request, this, &stream, &last,
                [&](httplib::Request& request) {
                  stream.BeginBody(BodyFrameOf(request), limits_.most_bytes);
                });
    if (!answered || last || !stream.IsAtEnd()) return true;
  }
  return false;
}

}  // namespace capstan
