// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/host_links.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/comm/backend_error.h"
#include "cluster/meet/rendezvous.h"

namespace capstan {
namespace {

constexpr int kWatchTag = HostLinks::kTags;
// Gloo closes all connections when a wait exceeds its limit.
constexpr std::chrono::hours kForever{24 * 365 * 10};
// The wait that tests whether a message had arrived before its host left.
constexpr std::chrono::milliseconds kMoment{1};
// Once a host has left, what others send each other either completes in this
// time, or lacks what the one would have sent.
constexpr std::chrono::seconds kAfterLeaving{30};

}  // namespace

HostLinks::HostLinks(c10::intrusive_ptr<c10d::Backend> backend,
                     std::vector<int> names,
                     std::function<void(const absl::Status&)> on_error)
    : backend_(std::move(backend)),
      names_(std::move(names)),
      on_error_(std::move(on_error)) {}

HostLinks::~HostLinks() { Close(); }

c10::intrusive_ptr<c10d::Work> HostLinks::Post(const HostMessage& message) {
  std::vector<at::Tensor> tensors = {at::from_blob(
      message.data, {message.bytes}, at::TensorOptions().dtype(at::kByte))};
  return message.send ? backend_->send(tensors, message.host, message.tag)
                      : backend_->recv(tensors, message.host, message.tag);
}

void HostLinks::EnsureWatch(int host) {
  if (watches_.count(host) > 0) return;
  auto watch = std::make_unique<Watch>();
  Watch* const added = watch.get();
  watch->work =
      Post({/*send=*/false, host, kWatchTag, &added->byte, sizeof(char)});
  const std::lock_guard<std::mutex> lock(mutex_);
  watches_[host] = std::move(watch);
  added->thread = std::thread([this, host, added] { RunWatch(host, added); });
}

absl::Status HostLinks::Start(int stream,
                              const std::vector<HostMessage>& messages,
                              std::function<void()> done) {
  Batch batch;
  batch.begun = std::chrono::steady_clock::now();
  batch.done = std::move(done);
  for (const HostMessage& message : messages) {
    try {
      EnsureWatch(message.host);
      batch.messages.push_back({Post(message), message.host});
    } catch (...) {
      return ErrorOf(message.host,
                     std::string(CurrentExceptionToStatus().message()));
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  // The watch may have ended before it could see these.
  for (const Pending& message : batch.messages) {
    if (gone_.count(message.host) > 0) message.work->abort();
  }
  while (static_cast<int>(streams_.size()) <= stream) {
    streams_.push_back(std::make_unique<Stream>());
    Stream* const added = streams_.back().get();
    added->thread = std::thread([this, added] { RunStream(added); });
  }
  streams_[stream]->batches.push_back(std::move(batch));
  streams_[stream]->more.notify_one();
  return absl::OkStatus();
}

void HostLinks::RunStream(Stream* stream) {
  while (true) {
    std::unique_lock<std::mutex> lock(mutex_);
    stream->more.wait(lock,
                      [&] { return closed_ || !stream->batches.empty(); });
    if (closed_) return;
    // Stays in the queue, where Close and RunWatch find its messages.
    const Batch& batch = stream->batches.front();
    lock.unlock();
    const absl::Status status = Await(batch);
    if (!status.ok()) return Fail(status);
    batch.done();
    lock.lock();
    if (closed_) return;
    const Batch complete = std::move(stream->batches.front());
    stream->batches.pop_front();
    // Messages may wait for Gloo when they end.
    lock.unlock();
  }
}

absl::Status HostLinks::Await(const Batch& batch) {
  for (const Pending& message : batch.messages) {
    CAPSTAN_RETURN_IF_ERROR(AwaitMessage(message));
  }
  return absl::OkStatus();
}

absl::Status HostLinks::AwaitMessage(const Pending& message) {
  try {
    if (message.work->wait(kCollectiveTimeout)) return absl::OkStatus();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) return absl::CancelledError("the connections are closed");
    }
  } catch (...) {
    return ErrorOf(message.host,
                   std::string(CurrentExceptionToStatus().message()));
  }
  // It was aborted because a host has left, but may have been complete by then.
  // The wait for that makes all connections look ended.
  const int lacks = GoneHost(message.host);
  try {
    if (message.work->wait(kMoment)) return absl::OkStatus();
  } catch (...) {
    // As expected.
  }
  return ErrorOf(lacks, "the connection has ended");
}

void HostLinks::RunWatch(int host, Watch* watch) {
  std::string what;
  try {
    watch->work->wait(kForever);
    return;  // Close
  } catch (...) {
    what = std::string(CurrentExceptionToStatus().message());
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_) return;
  gone_[host] = what;
  if (first_gone_ < 0) first_gone_ = host;
  const auto left = std::chrono::steady_clock::now();
  const auto ended = [&] { return closed_ || failed_; };
  while (!ended_.wait_until(lock, AbortLate(host, left), ended)) continue;
}

std::chrono::steady_clock::time_point HostLinks::AbortLate(
    int gone, std::chrono::steady_clock::time_point left) {
  const auto now = std::chrono::steady_clock::now();
  auto next = now + kAfterLeaving;
  for (const auto& stream : streams_) {
    for (const Batch& batch : stream->batches) {
      const auto late = std::max(batch.begun, left) + kAfterLeaving;
      if (late > now) next = std::min(next, late);
      for (const Pending& message : batch.messages) {
        if (message.host == gone || late <= now) message.work->abort();
      }
    }
  }
  return next;
}

int HostLinks::GoneHost(int host) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return gone_.count(host) > 0 || first_gone_ < 0 ? host : first_gone_;
}

absl::Status HostLinks::ErrorOf(int host, const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lost_ < 0) lost_ = names_[host];
  const auto gone = gone_.find(host);
  const std::string message =
      BackendMessage(gone != gone_.end() ? gone->second : what);
  if (IsTimeout(message)) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", names_[host], " has not come: ", message));
  }
  return absl::UnavailableError(
      absl::StrCat("rank ", names_[host], " has left the run: ", message));
}

void HostLinks::Fail(const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || failed_) return;
    failed_ = true;
    ended_.notify_all();
  }
  on_error_(status);
}

void HostLinks::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
    ended_.notify_all();
    for (const auto& stream : streams_) {
      for (const Batch& batch : stream->batches) {
        for (const Pending& message : batch.messages) message.work->abort();
      }
      stream->more.notify_one();
    }
    for (const auto& watch : watches_) watch.second->work->abort();
  }
  for (const auto& stream : streams_) stream->thread.join();
  for (const auto& watch : watches_) watch.second->thread.join();
  // Messages keep Gloo's connections open.
  streams_.clear();
  watches_.clear();
  backend_.reset();
}

int HostLinks::lost() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lost_;
}

}  // namespace capstan
