// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/operators/operands.h"

#include <ATen/core/List.h>

#include <optional>

namespace capstan::standin {

bool Written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

void ForEachTensor(const c10::IValue& value,
                   const std::function<void(const at::Tensor&)>& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) ForEachTensor(one, f);
  }
}

c10::IValue MapTensors(const c10::IValue& value,
                       const std::function<at::Tensor(const at::Tensor&)>& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(f(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      list.push_back(t.has_value() && t->defined()
                         ? std::optional<at::Tensor>(f(*t))
                         : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace capstan::standin
