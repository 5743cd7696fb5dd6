// SPDX-License-Identifier: Apache-2.0
//
// What an operator's results look like, found without their data.
#ifndef CAPSTAN_TESTING_STANDIN_OPERATORS_SHAPES_H_
#define CAPSTAN_TESTING_STANDIN_OPERATORS_SHAPES_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace capstan::standin {

// Whether the results' shapes depend on values of tensors, or aren't tensors.
bool DependsOnData(const c10::OperatorHandle& op,
                   const std::vector<c10::IValue>& arguments);

// The results of a call whose results don't depend on data: tensors without
// data in place of those that are made, and the argument itself for results
// that are an argument. By the operator's kernel for device type meta, else by
// its CPU kernel on zeros. Arguments named out are resized. Throws what the
// operator throws for arguments that don't fit.
std::vector<c10::IValue> ResultsWithoutData(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_OPERATORS_SHAPES_H_
