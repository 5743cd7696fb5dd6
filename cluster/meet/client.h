// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_CLIENT_H_
#define CAPSTAN_CLUSTER_MEET_CLIENT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/launch/network.h"
#include "cluster/meet/protocol.h"

namespace capstan {

// A rank's connection to the meeting. It has no thread of its own: one of the
// threads that wait for responses reads for all.
class MeetingClient {
 public:
  // Joins the meeting on a connection, whose other end must prove by `proof_by`
  // that it has the same token; blocks until the rank is admitted. `hello`
  // needs no nonce. Errors:
  //   NOT_FOUND: this is not the run's meeting.
  //   UNAVAILABLE: the connection broke or stayed silent; it may be worth
  //     another try.
  //   ABORTED or DEADLINE_EXCEEDED: the meeting has failed.
  //   FAILED_PRECONDITION: the run will never admit this process.
  static absl::StatusOr<std::unique_ptr<MeetingClient>> Join(
      SocketFd connection, Hello hello, const std::string& token,
      Deadline proof_by, Deadline deadline);
  // Returns OK if the other end proves by `deadline` that it is a meeting with
  // the token and `hello`'s run key; doesn't join it. Errors as Join's.
  static absl::Status Probe(SocketFd connection, Hello hello,
                            const std::string& token, Deadline deadline);

  // Tells rank 0 that this end leaves on purpose.
  ~MeetingClient();
  MeetingClient(const MeetingClient&) = delete;
  MeetingClient& operator=(const MeetingClient&) = delete;

  // This end's address.
  SocketAddress own_end() const {
    return SocketAddress::OwnEnd(connection_.get());
  }

  // From now on rank 0 doesn't treat the end of this connection as a lost rank.
  void MayLeave() { may_leave_ = true; }

  // Blocks until all ranks have joined; call it once, first. Calls `waiting`,
  // if given, about twice a second. Errors as Join's; the message of
  // DEADLINE_EXCEEDED says who is missing.
  absl::StatusOr<Met> AwaitAll(Deadline deadline,
                               const std::function<void()>& waiting = nullptr);

  // Sends the request (its id is set here) and waits for the response.
  // UNAVAILABLE if the connection is broken, DEADLINE_EXCEEDED. Thread-safe.
  absl::StatusOr<StoreResponse> Call(StoreRequest request, Deadline deadline);

 private:
  explicit MeetingClient(SocketFd connection)
      : connection_(std::move(connection)) {}

  // Makes the other end prove itself; returns this end's proof.
  absl::StatusOr<Proof> ProveRank0(Hello hello, const std::string& token,
                                   Deadline deadline);
  // The next payload. One thread at a time.
  absl::StatusOr<std::string> Receive(Deadline deadline);

  const SocketFd connection_;
  bool met_ = false;
  std::atomic<bool> may_leave_{false};
  FrameBuffer input_{kMaxStrangerPayload};  // of the thread that reads

  std::mutex send_mutex_;
  std::mutex mutex_;
  // Signals that a response has come or that another thread must read.
  std::condition_variable changed_;
  bool reading_ = false;
  uint32_t last_id_ = 0;
  // By request, until the thread that waits for it takes it.
  std::unordered_map<uint32_t, StoreResponse> responses_;
  absl::Status broken_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_CLIENT_H_
