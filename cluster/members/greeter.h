// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEMBERS_GREETER_H_
#define CAPSTAN_CLUSTER_MEMBERS_GREETER_H_

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "cluster/launch/network.h"
#include "cluster/members/wire.h"

namespace capstan {

// The member's side of the handshake: asks at one address after the other,
// until a launcher of the run answers. Never blocks. One thread.
class Greeter {
 public:
  // Watches its socket by `epoll`, which outlives it. Gives up an address after
  // `limit`.
  Greeter(int epoll, std::string run_key, std::string token,
          std::chrono::milliseconds limit)
      : epoll_(epoll),
        run_key_(std::move(run_key)),
        token_(std::move(token)),
        limit_(limit) {}

  // Begins with these, in place of what was under way.
  void Ask(const std::vector<SocketAddress>& addresses);
  // Whether an answer is still to come.
  bool asks() const { return connection_ != nullptr || !addresses_.empty(); }
  // Does what the others allow by now. Returns the connection to the first that
  // has answered, or null.
  std::unique_ptr<HostConnection> Continue(Deadline now);
  // When to call it again, unless epoll says so before.
  Deadline next_event() const {
    return connection_ == nullptr ? Deadline::max() : until_;
  }
  // Why the last address is none: UNAVAILABLE, nobody answers; NOT_FOUND, who
  // answers isn't a launcher of this run.
  const absl::Status& problem() const { return problem_; }
  void CloseInChild() const;

 private:
  void Connect(const SocketAddress& address, Deadline now);
  // OK once the other end has proved the token; nullopt: not yet.
  absl::optional<absl::Status> Shake(Deadline now);

  const int epoll_;
  const std::string run_key_;
  const std::string token_;
  const std::chrono::milliseconds limit_;
  std::deque<SocketAddress> addresses_;  // to ask yet
  absl::Status problem_;
  // Under way, or null.
  std::unique_ptr<HostConnection> connection_;
  SocketAddress address_;
  Deadline until_;
  std::string hello_;  // its frame
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEMBERS_GREETER_H_
