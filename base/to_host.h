// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_TO_HOST_H_
#define CAPSTAN_BASE_TO_HOST_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace capstan {

// `t` in host memory, as t.cpu(), but from a GPU through page-locked memory, at
// the bus's speed and with one wait of the host.
inline at::Tensor ToHost(const at::Tensor& t) {
  if (!t.is_cuda()) return t.cpu();
  const at::Tensor host =
      at::empty(t.sizes(), t.options().device(at::kCPU).pinned_memory(true));
  host.copy_(t, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  guard.synchronizeStream(guard.getStream(t.device()));
  return host;
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_TO_HOST_H_
