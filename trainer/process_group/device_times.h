// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_DEVICE_TIMES_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_DEVICE_TIMES_H_

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace capstan {

// How long collectives take on a device for which the host doesn't wait.
// Thread-safe.
class DeviceTimes {
 public:
  struct Seconds {
    // Of the collectives on the device, waiting for other ranks included.
    double busy = 0.0;
    // In which a stream stood still for them.
    double exposed = 0.0;
  };

  virtual ~DeviceTimes() = default;

  // Around a wait of the current stream for `work`, by one thread.
  virtual void BeforeWait() = 0;
  virtual void AfterWait(c10d::Work& work) = 0;

  // Of the waits that the device has passed since the last call. Never waits
  // itself: what isn't over yet is in a later answer.
  virtual Seconds Take() = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_DEVICE_TIMES_H_
