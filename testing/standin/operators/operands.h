// SPDX-License-Identifier: Apache-2.0
//
// The tensors among an operator's arguments and results.
#ifndef CAPSTAN_TESTING_STANDIN_OPERATORS_OPERANDS_H_
#define CAPSTAN_TESTING_STANDIN_OPERATORS_OPERANDS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>

namespace capstan::standin {

// Whether an argument or result is written: `Tensor(a!)`.
bool Written(const c10::Argument& argument);

// Calls f for each defined tensor in a value: a tensor, a list, or none.
void ForEachTensor(const c10::IValue& value,
                   const std::function<void(const at::Tensor&)>& f);

// The value with each of its tensors, undefined ones too, replaced by f(it).
c10::IValue MapTensors(const c10::IValue& value,
                       const std::function<at::Tensor(const at::Tensor&)>& f);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_OPERATORS_OPERANDS_H_
