// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_COMMUNICATION_METER_H_
#define CAPSTAN_CLUSTER_COMM_COMMUNICATION_METER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "plugins/sdk/process_group.h"

namespace capstan {

// Measures a group's collectives, and forwards to the meter of the group that
// it was split from. Thread-safe.
class CommunicationMeter {
 public:
  explicit CommunicationMeter(std::shared_ptr<CommunicationMeter> parent = {})
      : parent_(std::move(parent)) {}

  void Sent(int64_t bytes);
  // Call each once per collective, when it starts and when it has completed.
  void Started();
  void Finished();
  // A thread was blocked in Wait for `time`.
  void Waited(std::chrono::steady_clock::duration time);
  // Adds the seconds that a device was busy with collectives and blocked by
  // them; called instead of the three above.
  void Measured(double busy, double exposed);

  CommunicationStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  const std::shared_ptr<CommunicationMeter> parent_;
  mutable std::mutex mutex_;
  int64_t bytes_sent_ = 0;
  int under_way_ = 0;
  // Start of the oldest collective under way.
  Clock::time_point busy_since_;
  Clock::duration busy_{0};
  Clock::duration exposed_{0};
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_COMMUNICATION_METER_H_
