// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_DEVICE_TIMES_H_
#define CAPSTAN_CLUSTER_COMM_DEVICE_TIMES_H_

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace capstan {

// A collective on a device, without its tensors. Its functions don't wait for
// the device, and any thread may call them; they throw c10::Error if it is
// lost.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  // Whether the device has come to it, and whether it is done with it.
  virtual bool Started() = 0;
  virtual bool Ended() = 0;
};

// Measures how long collectives take on a device, and follows them, without the
// host waiting for it. Thread-safe.
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

  // Called by the thread that has started `work`. Null if a graph captures it:
  // it happens when that is launched.
  virtual std::unique_ptr<DeviceWork> Follow(c10d::Work& work) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_DEVICE_TIMES_H_
