// SPDX-License-Identifier: Apache-2.0
//
// What launchers send each other, and how a connection of theirs begins.
//
//   member                      leader
//   Hello, Challenge, Proof     as in meet/protocol.h; the hello's rank is 0 of
//   1 Enrol             ->      of a member, or of a leader that may follow
//                     <-        Elsewhere, if it follows another
//                     <-        Decided, again and again
//   Entered, Died, Failed, Leaving, LeaveOut, Finished    ->
//                     <-        End
//                     <-        Bye: another host becomes the leader
//                     <-        Moved: the leader follows another, of a part of
//                               the run that was cut off from it, and so do its
//                               members
//
// After the handshake a payload is a JSON object with the message's "kind".
#ifndef CAPSTAN_CLUSTER_MEMBERS_WIRE_H_
#define CAPSTAN_CLUSTER_MEMBERS_WIRE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "cluster/launch/network.h"
#include "cluster/meet/protocol.h"

namespace capstan {

// A message between launchers that have proved the run's token.
using HostMessage = nlohmann::json;

// A connection that never blocks. One thread.
class HostConnection {
 public:
  // Over a socket that may still be connecting.
  explicit HostConnection(SocketFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  // False once the other end is gone, or has sent what it mayn't.
  bool alive() const { return alive_; }
  // Whether it ended since the other host doesn't answer.
  bool silent() const;
  // The system's reason for its end; 0: there is none.
  int error() const { return error_; }
  // Whether there is output that the socket didn't take.
  bool blocked() const { return !output_.empty(); }
  // Makes `epoll` watch it, from the first call on: for input, and for room to
  // send while that is missed.
  void Watch(int epoll);

  void Send(const HostMessage& message);
  void SendFrame(const std::string& frame);
  // Sends what waits.
  void Flush();
  // Reads what is there.
  void Receive();
  // The next payload that was received.
  absl::optional<std::string> Next();
  // The same, as a message.
  absl::optional<HostMessage> NextMessage();
  void Close() { alive_ = false; }
  // Closes it for the system's reason.
  void Fail(int error) {
    error_ = error;
    Close();
  }

 private:
  SocketFd fd_;
  bool alive_ = true;
  int error_ = 0;
  uint32_t watched_ = 0;  // epoll's events; 0: none
  FrameBuffer input_{size_t{1} << 20};
  std::string output_;
};

// Who a launcher is, for the handshake.
Hello HelloOfHost(const std::string& run_key);

// The leader's side of the handshake. Not thread-safe; never blocks.
class HostHandshake {
 public:
  // Answers a payload from `connection`, which is closed unless that is in
  // order. Returns whether the other end has proved the token.
  bool Answer(absl::string_view payload, const std::string& run_key,
              const std::string& token, HostConnection* connection);

 private:
  std::string hello_payload_;
  std::string nonce_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEMBERS_WIRE_H_
