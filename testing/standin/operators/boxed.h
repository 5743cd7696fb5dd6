// SPDX-License-Identifier: Apache-2.0
//
// An operator of ATen on the stand-in device, by its kernel for CPUs.
#ifndef CAPSTAN_TESTING_STANDIN_OPERATORS_BOXED_H_
#define CAPSTAN_TESTING_STANDIN_OPERATORS_BOXED_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

namespace capstan::standin {

// Kernel for the CUDA key of an operator that also runs on CPUs: finds the
// outputs' shapes without data, allocates them, and enqueues a work that
// computes them. Operators whose outputs' shapes depend on data, or that return
// values to the host, wait for the stream first. Any thread.
void RunByCpuKernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

// Kernel for the CUDA key of an operator that the stand-in device lacks: throws
// an error that names it.
void RefuseOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_OPERATORS_BOXED_H_
