// SPDX-License-Identifier: Apache-2.0
//
// What a precision comes to on the device of a run.
#ifndef CAPSTAN_TRAINER_SESSION_DEVICE_PRECISION_H_
#define CAPSTAN_TRAINER_SESSION_DEVICE_PRECISION_H_

#include <c10/core/ScalarType.h>

#include <string>

#include "plugins/sdk/precision.h"

namespace capstan {

// The device of a run on this machine's `gpus` GPUs, or on its CPU if there are
// none, as far as `precision` asks.
DeviceFacts DeviceOf(const Precision& precision, int gpus);

// "float32", as PyTorch says.
std::string DtypeName(c10::ScalarType dtype);

// Whether the device computes in `dtype` more slowly than in float32. CPUs do
// in the 16-bit types: our kernels are float32's (kernels/), and LibTorch's
// convert each operand.
bool IsSlow(c10::ScalarType dtype, const DeviceFacts& device);

// For the user, where the run computes in a dtype that its device is slow in:
// that it does, and what to set instead; else "".
std::string SlowPrecisionNote(const Precision& precision,
                              const std::string& package,
                              const DeviceFacts& device);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DEVICE_PRECISION_H_
