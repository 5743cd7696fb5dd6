// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_TO_DEVICE_H_
#define CAPSTAN_KERNELS_TO_DEVICE_H_

#include <ATen/core/Tensor.h>

#include "kernels/context/work_recorder.h"

namespace capstan::kernels {

// `t` on `device`, as t.to(device), but from the CPU to a GPU without making
// the host wait: through page-locked memory, which LibTorch's allocator keeps
// until the copy has run. Enqueued on the device's current stream, unless a
// recorder brings the values there.
inline at::Tensor ToDevice(const at::Tensor& t, at::Device device) {
  if (!t.is_cpu() || !device.is_cuda()) return t.to(device);
  if (WorkRecorder* const recorder = CurrentWorkRecorder()) {
    at::Tensor values = recorder->Values(t, device);
    if (values.defined()) return values;
  }
  const at::Tensor pinned = t.is_pinned() ? t : t.contiguous().pin_memory();
  return pinned.to(device, /*non_blocking=*/true);
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_TO_DEVICE_H_
