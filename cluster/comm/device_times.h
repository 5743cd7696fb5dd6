// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_DEVICE_TIMES_H_
#define CAPSTAN_CLUSTER_COMM_DEVICE_TIMES_H_

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace capstan {

// Measures how long collectives take on a device, without the host waiting for
// it. Thread-safe.
class DeviceTimes {
 public:
  struct Seconds {
    // The time of collectives on the device, including waits for other ranks.
    double busy = 0.0;
    // The time that a stream was blocked by them.
    double exposed = 0.0;
  };

  virtual ~DeviceTimes() = default;

  // Called by one thread around a wait of the current stream for `work`.
  virtual void BeforeWait() = 0;
  virtual void AfterWait(c10d::Work& work) = 0;

  // Returns the times of the waits that the device has completed since the last
  // call. Doesn't block: a wait still in progress is counted later.
  virtual Seconds Take() = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_DEVICE_TIMES_H_
