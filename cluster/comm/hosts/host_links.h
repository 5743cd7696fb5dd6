// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_HOSTS_HOST_LINKS_H_
#define CAPSTAN_CLUSTER_COMM_HOSTS_HOST_LINKS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// A message between the leaders of this host and another.
struct HostMessage {
  bool send;  // else receive
  int host;   // the other
  // Messages from one host to another arrive in order for each tag. Below
  // HostLinks::kTags.
  int tag;
  char* data;  // [bytes], untouched by others until the message is complete
  int64_t bytes;
};

// Sends and receives messages for the leader of a host. c10d can only block
// until a message is complete, so each stream of messages has a thread that
// awaits them in order. Used by one thread. Messages are of collectives of all
// hosts, the last of which no host completes before all have begun it: once one
// has left, others' messages that stay incomplete fail.
class HostLinks {
 public:
  static constexpr int kTags = 1 << 28;

  // `backend` connects the leaders: its ranks are hosts. `names` are the
  // leaders' ranks in the run, for errors. `on_error` is called once, on
  // another thread, if a pending message can't complete.
  HostLinks(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> names,
            std::function<void(const absl::Status&)> on_error);
  // Calls Close.
  ~HostLinks();
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  // Begins `messages`. Once they and all earlier ones of `stream` (0, 1, ..)
  // are complete, calls `done` on the stream's thread. A message sent is
  // complete when its data may be reused. UNAVAILABLE if a host has left.
  absl::Status Start(int stream, const std::vector<HostMessage>& messages,
                     std::function<void()> done);

  // Closes the connections, which tells the other leaders. Incomplete messages
  // are dropped: their data isn't touched any more.
  void Close();

  // The rank in the run of the first leader that was lost, or -1. Thread-safe.
  int lost() const;

 private:
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;
    int host;
  };
  struct Batch {
    std::chrono::steady_clock::time_point begun;
    std::vector<Pending> messages;
    std::function<void()> done;
  };
  struct Stream {
    std::deque<Batch> batches;
    std::condition_variable more;
    std::thread thread;
  };
  // A receive that the other host never answers, so that it fails when the
  // connection ends. Gloo doesn't fail messages that are partly transferred.
  struct Watch {
    c10::intrusive_ptr<c10d::Work> work;
    std::thread thread;
    char byte = 0;
  };

  c10::intrusive_ptr<c10d::Work> Post(const HostMessage& message);
  void EnsureWatch(int host);
  void RunStream(Stream* stream);
  void RunWatch(int host, Watch* watch);
  // Blocks until all of `batch` are complete.
  absl::Status Await(const Batch& batch);
  absl::Status AwaitMessage(const Pending& message);
  // After a host has left, under mutex_: aborts the messages with it, and those
  // of batches that are late; returns when the next one will be.
  std::chrono::steady_clock::time_point AbortLate(
      int gone, std::chrono::steady_clock::time_point left);
  // Whom a message that was aborted lacks: its host, unless that is there and
  // another isn't.
  int GoneHost(int host) const;
  // The error of a message from or to `host`; records who was lost.
  absl::Status ErrorOf(int host, const std::string& what);
  void Fail(const absl::Status& status);

  c10::intrusive_ptr<c10d::Backend> backend_;
  const std::vector<int> names_;
  const std::function<void(const absl::Status&)> on_error_;

  mutable std::mutex mutex_;
  bool closed_ = false;
  bool failed_ = false;
  std::condition_variable ended_;  // closed_ or failed_
  int lost_ = -1;
  std::map<int, std::string> gone_;  // hosts, and how the connection ended
  int first_gone_ = -1;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<int, std::unique_ptr<Watch>> watches_;  // by host
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_HOSTS_HOST_LINKS_H_
