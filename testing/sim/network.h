// SPDX-License-Identifier: Apache-2.0
//
// TCP as its users see it: bytes arrive in order, after a while, or not while
// two hosts can't reach each other; a dead process's connections end, a dead
// host's don't, until something asks it.
#ifndef CAPSTAN_TESTING_SIM_NETWORK_H_
#define CAPSTAN_TESTING_SIM_NETWORK_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "testing/sim/objects.h"
#include "testing/sim/world.h"

namespace capstan::sim {

struct Address {
  uint32_t host = 0;  // in host byte order
  int port = 0;
  bool operator==(const Address& other) const {
    return host == other.host && port == other.port;
  }
};

class Socket final : public OpenFile,
                     public std::enable_shared_from_this<Socket> {
 public:
  enum State { kNew, kListening, kConnecting, kConnected, kBroken };

  Socket(Host* host, int type);
  ~Socket() override;

  ssize_t Read(char* out, size_t size) override;
  ssize_t Write(const char* bytes, size_t size) override;
  int Ready() override;
  int Stat(struct stat* info) override;
  void Vanish() override { vanished_ = true; }

  int Bind(const Address& address);
  int Listen();
  // -EINPROGRESS, or 0 for a datagram socket.
  int Connect(const Address& address);
  // Null: there is none.
  std::shared_ptr<Socket> Accept();
  int Shutdown(int how);
  int TakeError();
  void SetKeepAlive(int option, int value);
  bool connected() const { return state_ == kConnected; }
  bool connecting() const { return state_ == kConnecting; }
  ssize_t Peek(char* out, size_t size) const;

  Address own;
  Address other;

 private:
  friend void NoteUnreachable(int, int);
  // What is under way to this socket.
  struct Segment {
    std::string bytes;
    bool end = false;
    Time sent = 0;
  };

  bool Reaches() const;
  void SendSyn(Time retry);
  void Send(Segment segment);
  // To the other end; `retry` is the next pause if it can't be reached.
  void Deliver(Time retry);
  static void DeliverRest(const std::shared_ptr<std::deque<Segment>>& rest,
                          const std::weak_ptr<Socket>& peer, int from,
                          Time retry);
  void Break(int error);
  void ResetOther();
  // Breaks the connection unless its other end is reachable by then.
  void WatchSilence();
  Time Latency() const;

  Host* const host_;
  const int type_;
  uint64_t number_ = 0;
  State state_ = kNew;
  Host* peer_host_ = nullptr;
  std::weak_ptr<Socket> peer_;
  std::string input_;
  bool input_ended_ = false;
  bool output_ended_ = false;
  int error_ = 0;
  bool vanished_ = false;
  std::deque<Segment> under_way_;  // from here
  size_t under_way_bytes_ = 0;
  bool delivering_ = false;
  Time last_arrival_ = 0;
  std::deque<std::shared_ptr<Socket>> backlog_;
  bool keep_alive_ = false;
  int idle_ = 7200;
  int interval_ = 75;
  int probes_ = 9;
};

// Two hosts can't reach each other any more.
void NoteUnreachable(int a, int b);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTING_SIM_NETWORK_H_
