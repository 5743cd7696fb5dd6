// SPDX-License-Identifier: Apache-2.0
//
// copy_: within a device a work; between host and device, and between devices,
// LibTorch's own, which ends in cudaMemcpyAsync.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "testing/standin/operators/arguments.h"
#include "testing/standin/operators/cost.h"
#include "testing/standin/operators/special.h"

namespace capstan::standin {
namespace {

at::Tensor& Copy(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  const bool within =
      self.is_cuda() && src.is_cuda() && self.device() == src.device();
  if (!within || self.is_same(src)) {
    return at::native::copy_(self, src, non_blocking);
  }
  const c10::cuda::CUDAGuard on_device(self.device());
  const at::Tensor from = src.expand_as(self);  // throws if it doesn't fit
  if (self.numel() == 0) return self;
  static const c10::OperatorHandle* const op = new c10::OperatorHandle(
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  const std::vector<c10::IValue> arguments = {self, from, non_blocking};
  Work work;
  work.name = "aten::copy_";
  work.cost = CostOf(op->schema(), arguments, {});
  AddSpans(op->schema(), arguments, {}, &work);
  work.run = [to = HostAlias(self), from = HostAlias(from)]() mutable {
    const at::AutoDispatchBelowADInplaceOrView guard;
    to.copy_(from);
    return Progress::kDone;
  };
  EnqueueOn(self.get_device(), std::move(work));
  return self;
}

}  // namespace

void AddCopies(torch::Library& library) {
  library.impl("copy_", TORCH_FN(Copy));
}

}  // namespace capstan::standin
