// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/operators/shapes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "testing/standin/operators/arguments.h"

namespace capstan::standin {
namespace {

bool HasMask(const c10::IValue& indices) {
  bool found = false;
  ForEachTensor(indices, [&](const at::Tensor& t) {
    found |= t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
  });
  return found;
}

bool IsTensors(const c10::Argument& result) {
  const c10::TypeKind kind = result.type()->kind();
  if (kind == c10::TypeKind::TensorType) return true;
  const auto list = result.type()->cast<c10::ListType>();
  return list != nullptr &&
         list->getElementType()->kind() == c10::TypeKind::TensorType;
}

// What the results of a probe depend on; "" if that can't be told.
std::string ProbeKey(const c10::OperatorHandle& op,
                     const std::vector<c10::IValue>& arguments) {
  std::ostringstream key;
  key << op.operator_name();
  for (const c10::IValue& value : arguments) {
    key << '|';
    if (value.isTensor() || value.isTensorList() ||
        value.isOptionalTensorList()) {
      ForEachTensor(value, [&](const at::Tensor& t) {
        key << t.scalar_type() << t.sizes() << t.strides() << t.device().type();
      });
    } else if (value.isGenerator()) {
      key << "generator";
    } else {
      key << value;
    }
  }
  return key.str();
}

// Runs the operator on tensors of the device type that have no data.
std::vector<c10::IValue> Call(const c10::OperatorHandle& op,
                              const std::vector<c10::IValue>& arguments,
                              c10::DeviceType type,
                              std::vector<c10::IValue>* stand_ins) {
  *stand_ins =
      ArgumentsOn(op.schema(), arguments, type,
                  [&](const at::Tensor& t) { return WithoutData(t, type); });
  torch::jit::Stack stack(stand_ins->begin(), stand_ins->end());
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(stack);
  return stack;
}

// Gives `out` the shape of its stand-in, as operators do with what they write.
void ResizeLike(const c10::IValue& out, const c10::IValue& stand_in) {
  if (!out.isTensor() || !out.toTensor().defined()) return;
  const at::Tensor real = out.toTensor();
  const at::Tensor like = stand_in.toTensor();
  if (real.sizes() == like.sizes()) return;
  real.resize_(like.sizes());
  if (real.strides() != like.strides()) {
    real.as_strided_(like.sizes(), like.strides());
  }
}

bool WritesInto(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) return true;
  }
  return false;
}

// Whether every result is an argument.
bool MakesNothing(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (!Written(result)) return false;
  }
  return true;
}

}  // namespace

bool DependsOnData(const c10::OperatorHandle& op,
                   const std::vector<c10::IValue>& arguments) {
  static const std::set<std::string>* const kNames = new std::set<std::string>{
      "aten::nonzero",          "aten::masked_select",
      "aten::_unique",          "aten::_unique2",
      "aten::unique_dim",       "aten::unique_consecutive",
      "aten::bincount",         "aten::unique_dim_consecutive",
      "aten::repeat_interleave"};
  const std::string& name = op.operator_name().name;
  for (const c10::Argument& result : op.schema().returns()) {
    if (!IsTensors(result)) return true;
  }
  if (name == "aten::repeat_interleave") return arguments.back().isNone();
  if (name == "aten::index") return HasMask(arguments[1]);
  if (name == "aten::_index_put_impl_") {
    // With one number on the host it becomes masked_fill, which doesn't wait.
    const at::Tensor& value = arguments[2].toTensor();
    return HasMask(arguments[1]) && !(value.is_cpu() && value.numel() == 1);
  }
  return kNames->count(name) > 0;
}

std::vector<c10::IValue> ResultsWithoutData(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  const c10::FunctionSchema& schema = op.schema();
  const bool meta = op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
                    !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  std::vector<c10::IValue> stand_ins;
  if (meta) {
    const std::vector<c10::IValue> results =
        Call(op, arguments, at::kMeta, &stand_ins);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (schema.arguments()[i].is_out()) {
        ResizeLike(arguments[i], stand_ins[i]);
      }
    }
    return results;
  }
  if (MakesNothing(schema) && !WritesInto(schema)) {
    return std::vector<c10::IValue>(schema.returns().size());
  }
  struct Found {
    std::vector<c10::IValue> results, stand_ins;
  };
  static std::mutex mutex;
  static std::map<std::string, Found>* const cache =
      new std::map<std::string, Found>;
  const std::string key = ProbeKey(op, arguments);
  const std::lock_guard<std::mutex> lock(mutex);
  auto at = cache->find(key);
  if (at == cache->end()) {
    Found found;
    const std::vector<c10::IValue> results =
        Call(op, arguments, at::kCPU, &found.stand_ins);
    const auto forget = [](const at::Tensor& t) {
      return WithoutData(t, at::kMeta);
    };
    for (const c10::IValue& value : results) {
      found.results.push_back(MapTensors(value, forget));
    }
    for (c10::IValue& value : found.stand_ins) {
      value = MapTensors(value, forget);
    }
    at = cache->emplace(key, std::move(found)).first;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].is_out()) {
      ResizeLike(arguments[i], at->second.stand_ins[i]);
    }
  }
  return at->second.results;
}

}  // namespace capstan::standin
