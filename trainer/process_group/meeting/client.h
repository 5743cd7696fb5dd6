// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_CLIENT_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_CLIENT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/process_group/meeting/network.h"
#include "trainer/process_group/meeting/protocol.h"

namespace capstan {

// A rank's connection to the meeting. Has no thread of its own: of the threads
// that wait for a response, one reads for all.
class MeetingClient {
 public:
  // Introduces the rank on a connection, whose other end must prove until
  // `proof_by` to have the same token; blocks until the rank is admitted.
  // `hello` needs no nonce. Errors:
  //   NOT_FOUND: this is not the run's meeting.
  //   UNAVAILABLE: the connection broke or stayed silent; it may be worth
  //     another try.
  //   ABORTED or DEADLINE_EXCEEDED: the meeting has failed.
  //   FAILED_PRECONDITION: the run will never admit this process.
  static absl::StatusOr<std::unique_ptr<MeetingClient>> Knock(
      SocketFd connection, Hello hello, const std::string& token,
      Deadline proof_by, Deadline deadline);
  // OK if the other end proves until `deadline` to be a meeting of `hello`'s
  // run key that has the token; joins nothing. Errors as Knock's.
  static absl::Status Probe(SocketFd connection, Hello hello,
                            const std::string& token, Deadline deadline);

  // Lets rank 0 know that this end is no accident.
  ~MeetingClient();
  MeetingClient(const MeetingClient&) = delete;
  MeetingClient& operator=(const MeetingClient&) = delete;

  // This end's address; not valid() on rank 0, whose connection has none.
  SocketAddress own_end() const {
    return SocketAddress::OwnEnd(connection_.get());
  }

  // From now on this end may close without the others taking it for a loss.
  void MayLeave() { may_leave_ = true; }

  // Blocks until all ranks have joined; call once, first. Calls `waiting`, if
  // given, about once in half a second. Errors as Knock's; the message of
  // DEADLINE_EXCEEDED says who is missing.
  absl::StatusOr<Met> AwaitAll(Deadline deadline,
                               const std::function<void()>& waiting = nullptr);

  // Sends the request (its id is set here) and waits for the response.
  // UNAVAILABLE if the connection is broken, DEADLINE_EXCEEDED. Thread-safe.
  absl::StatusOr<StoreResponse> Call(StoreRequest request, Deadline deadline);

 private:
  explicit MeetingClient(SocketFd connection)
      : connection_(std::move(connection)) {}

  // Has the other end prove itself; returns this end's answer to it.
  absl::StatusOr<Proof> ProveRank0(Hello hello, const std::string& token,
                                   Deadline deadline);
  absl::Status Introduce(Hello hello, const std::string& token,
                         Deadline proof_by, Deadline deadline);
  // The next payload. One thread at a time.
  absl::StatusOr<std::string> Receive(Deadline deadline);
  // Under mutex_: hands a response to the thread that waits for it.
  void Deliver(const std::string& payload);

  const SocketFd connection_;
  bool met_ = false;
  std::atomic<bool> may_leave_{false};
  FrameBuffer input_{kMaxStrangerPayload};  // of the thread that reads

  std::mutex send_mutex_;
  std::mutex mutex_;
  // A response has come, or another thread must read.
  std::condition_variable changed_;
  bool reading_ = false;
  uint32_t last_id_ = 0;
  std::set<uint32_t> waiting_;
  std::unordered_map<uint32_t, StoreResponse> responses_;
  absl::Status broken_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_CLIENT_H_
