// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEMBERS_HOST_SERVER_H_
#define CAPSTAN_CLUSTER_MEMBERS_HOST_SERVER_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/launch/network.h"
#include "cluster/members/wire.h"

namespace capstan {

// The connections that other hosts' launchers have made to this one. Never
// blocks. One thread.
class HostServer {
 public:
  // A launcher that has proved the run's token.
  struct Peer {
    std::unique_ptr<HostConnection> connection;
    HostHandshake handshake;
    bool proved = false;
    std::string id;  // "" until it has enrolled
    int port = 0;    // where it listens
    Deadline until;  // of the handshake
  };

  // Watches its sockets by `epoll`, which outlives it. A host that hasn't
  // answered for `silence` is gone.
  HostServer(int epoll, std::string run_key, std::string token,
             std::chrono::milliseconds silence)
      : epoll_(epoll),
        run_key_(std::move(run_key)),
        token_(std::move(token)),
        silence_(silence) {}
  HostServer(const HostServer&) = delete;
  HostServer& operator=(const HostServer&) = delete;

  // Accepts connections from now on.
  void Listen(SocketFd listening);
  bool listens() const { return !listening_.empty(); }
  // The address of the first of these.
  const SocketAddress& address() const { return address_; }

  // Handles what epoll has found at `fd`, if that is its own. `message` is
  // called for each message.
  void Handle(int fd,
              const std::function<void(Peer* peer, const HostMessage& message)>&
                  message);
  // Removes those that are gone. Returns the ids of those that had enrolled,
  // and whether their hosts don't answer.
  std::vector<std::pair<std::string, bool>> TakeLost(Deadline now);
  // Watches what the connections wait for; called after all that is done.
  void Watch();
  Deadline next_event() const;

  // Calls fn for each that has enrolled.
  void ForEach(const std::function<void(Peer* peer)>& fn);
  void SendToAll(const HostMessage& message) {
    ForEach([&](Peer* peer) { peer->connection->Send(message); });
  }
  // Null if there is none.
  Peer* Find(const std::string& id);
  // `peer` is the one of this id from now on: an older connection of it is
  // closed.
  void Enrol(Peer* peer, const std::string& id, int port);

  // Closes everything.
  void Close();
  // In a child: closes the sockets, which stay open in the parent.
  void CloseInChild() const;

 private:
  void Accept(int listening);

  const int epoll_;
  const std::string run_key_;
  const std::string token_;
  const std::chrono::milliseconds silence_;
  std::vector<SocketFd> listening_;
  SocketAddress address_;
  std::map<int, Peer> peers_;  // by their sockets
};

// Makes epoll_wait return for input at `fd`.
void WatchSocket(int epoll, int fd);

// Makes a connection fail once the other host hasn't answered for `limit`, also
// with output under way: what launchers send always has room at the other end,
// even if that is stopped.
void NoticeSilentHost(int fd, std::chrono::milliseconds limit);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEMBERS_HOST_SERVER_H_
