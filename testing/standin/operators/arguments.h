// SPDX-License-Identifier: Apache-2.0
//
// An operator's arguments: on the stand-in device, as its works see them, and
// as stand-ins without data.
#ifndef CAPSTAN_TESTING_STANDIN_OPERATORS_ARGUMENTS_H_
#define CAPSTAN_TESTING_STANDIN_OPERATORS_ARGUMENTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

#include "testing/standin/device.h"
#include "testing/standin/operators/operands.h"

namespace capstan::standin {

// The bytes between a tensor's first and its last element; none if it is empty.
Span SpanOf(const at::Tensor& t);

// A CPU tensor on the same bytes, through HostView, which doesn't own them. A
// CPU tensor's is a copy: a kernel's launch reads its scalars.
at::Tensor HostAlias(const at::Tensor& t);

// Like t, but on device type meta or, zeros, on the CPU.
at::Tensor WithoutData(const at::Tensor& t, c10::DeviceType type);

// The GPU of the first CUDA tensor, or of a device argument; -1: neither.
c10::DeviceIndex DeviceOf(const std::vector<c10::IValue>& arguments);

// The arguments with `type` as device, not pinned, and a generator of the
// stand-in device's own; tensors are replaced by f.
std::vector<c10::IValue> ArgumentsOn(
    const c10::FunctionSchema& schema,
    const std::vector<c10::IValue>& arguments, c10::DeviceType type,
    const std::function<at::Tensor(const at::Tensor&)>& f);

// Spans of the CUDA tensors that the call reads and writes.
void AddSpans(const c10::FunctionSchema& schema,
              const std::vector<c10::IValue>& arguments,
              const std::vector<c10::IValue>& results, Work* work);

// Adds the work to the GPU's current stream. Throws as a failed launch does.
void EnqueueOn(c10::DeviceIndex device, Work work);
// Waits for that stream, as operators do that need to see data.
void WaitForStreamOf(c10::DeviceIndex device, const std::string& why);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_OPERATORS_ARGUMENTS_H_
