// SPDX-License-Identifier: Apache-2.0
//
// The library's server, with connections of its own: the library limits each
// read and write of one, by which a client may hold it for ever, and takes what
// follows a body that it hasn't read for the next request.
#ifndef CAPSTAN_DESK_HTTP_CONNECTIONS_H_
#define CAPSTAN_DESK_HTTP_CONNECTIONS_H_

#include <httplib.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace capstan {

struct ConnectionLimits {
  size_t most = 0;        // connections at once; further ones wait
  size_t most_bytes = 0;  // of a request's body
  // How long a request may keep its connection waiting in all, for its own
  // bytes and for its client to take the answer.
  std::chrono::milliseconds patience{0};
};

// Where a request's body ends, by its head.
struct BodyFrame {
  bool chunked = false;
  uint64_t bytes = 0;   // unless it is chunked
  std::string problem;  // why two readers may see two ends; "": they don't
};
BodyFrame BodyFrameOf(const httplib::Request& request);

class ConnectionServer final : public httplib::Server {
 public:
  explicit ConnectionServer(const ConnectionLimits& limits);

  // Whoever reads or writes a connection finds it closed.
  void EndConnections();

 private:
  bool process_and_close_socket(socket_t socket) override;
  // Answers one request after the other. Returns whether the client may still
  // be sending what nobody reads.
  bool Answer(socket_t socket);

  const ConnectionLimits limits_;
  std::mutex mutex_;
  std::set<socket_t> sockets_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_HTTP_CONNECTIONS_H_
