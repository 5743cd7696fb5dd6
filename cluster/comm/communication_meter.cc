// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/communication_meter.h"

namespace capstan {

void CommunicationMeter::Sent(int64_t bytes) {
  if (parent_ != nullptr) parent_->Sent(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes_sent_ += bytes;
}

void CommunicationMeter::Started() {
  if (parent_ != nullptr) parent_->Started();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (under_way_++ == 0) busy_since_ = Clock::now();
}

void CommunicationMeter::Finished() {
  if (parent_ != nullptr) parent_->Finished();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--under_way_ == 0) busy_ += Clock::now() - busy_since_;
}

void CommunicationMeter::Waited(Clock::duration time) {
  if (parent_ != nullptr) parent_->Waited(time);
  const std::lock_guard<std::mutex> lock(mutex_);
  exposed_ += time;
}

void CommunicationMeter::Measured(double busy, double exposed) {
  if (parent_ != nullptr) parent_->Measured(busy, exposed);
  const auto time = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(seconds));
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  busy_ += time(busy);
  exposed_ += time(exposed);
}

CommunicationStats CommunicationMeter::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Clock::duration busy = busy_;
  if (under_way_ > 0) busy += Clock::now() - busy_since_;
  CommunicationStats stats;
  stats.bytes_sent = bytes_sent_;
  stats.busy_seconds = std::chrono::duration<double>(busy).count();
  stats.exposed_seconds = std::chrono::duration<double>(exposed_).count();
  return stats;
}

}  // namespace capstan
