// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/operators/boxed.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "testing/standin/device.h"
#include "testing/standin/operators/arguments.h"
#include "testing/standin/operators/cost.h"
#include "testing/standin/operators/shapes.h"

namespace capstan::standin {
namespace {

std::string NameOf(const c10::OperatorHandle& op) {
  return op.operator_name().name;
}

// Matrix products of 16-bit numbers, which tensor cores add up in float32 and
// round once; CPU kernels differ in that.
//
// So are softmaxes of 16-bit numbers to float32, which CPUs don't have.
bool InFloat32(const std::string& name) {
  static const std::set<std::string>* const kNames =
      new std::set<std::string>{"aten::mm",
                                "aten::addmm",
                                "aten::addmm_",
                                "aten::bmm",
                                "aten::baddbmm",
                                "aten::baddbmm_",
                                "aten::mv",
                                "aten::addmv",
                                "aten::addmv_",
                                "aten::dot",
                                "aten::_softmax",
                                "aten::_log_softmax",
                                "aten::_softmax_backward_data",
                                "aten::_log_softmax_backward_data"};
  return kNames->count(name) > 0;
}

bool Is16Bit(const at::Tensor& t) {
  return t.defined() &&
         (t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf);
}

// Operators that take tensors of the host beside those of the device.
bool MayTakeHostTensors(const std::string& name) {
  static const std::set<std::string>* const kNames = new std::set<std::string>{
      "aten::index", "aten::index_put_", "aten::_index_put_impl_"};
  return kNames->count(name) > 0;
}

void CheckDevices(const c10::OperatorHandle& op,
                  const std::vector<c10::IValue>& arguments,
                  c10::DeviceIndex device) {
  const std::string name = NameOf(op);
  const bool host_allowed = MayTakeHostTensors(name);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    ForEachTensor(arguments[i], [&](const at::Tensor& t) {
      const bool scalar = t.dim() == 0 && !Written(argument);
      TORCH_CHECK(
          t.is_cuda() ? t.get_device() == device
                      : (t.is_cpu() && (scalar || host_allowed)),
          "Expected all tensors to be on the same device, but argument ",
          argument.name(), " of ", name, " is on ", t.device(),
          ", others are on cuda:", static_cast<int>(device));
    });
  }
}

// A call on the CPU, again and again: what the device's thread does.
struct HostCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // aliases of device memory
  std::vector<c10::IValue> results;    // likewise; none: results are arguments
  bool float32 = false;

  // The results that the CPU kernel makes, arguments written.
  std::vector<c10::IValue> Call() const {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (!float32) {
      torch::jit::Stack stack(arguments.begin(), arguments.end());
      op.callBoxed(stack);
      return stack;
    }
    const auto widen = [](const at::Tensor& t) {
      return Is16Bit(t) ? t.to(at::kFloat) : t;
    };
    std::vector<c10::IValue> wide;
    for (const c10::IValue& value : arguments) {
      wide.push_back(MapTensors(value, widen));
    }
    for (size_t i = 0; i < wide.size(); ++i) {
      const std::string& argument = op.schema().arguments()[i].name();
      if (argument == "half_to_float") wide[i] = false;
      if (argument == "input_dtype") wide[i] = at::kFloat;
    }
    torch::jit::Stack stack(wide.begin(), wide.end());
    op.callBoxed(stack);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (Written(op.schema().arguments()[i])) {
        arguments[i].toTensor().copy_(wide[i].toTensor());
      }
    }
    return stack;
  }

  void Run() const {
    const std::vector<c10::IValue> made = Call();
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (size_t i = 0; i < results.size(); ++i) Store(made[i], results[i]);
  }

  static void Store(const c10::IValue& from, const c10::IValue& to) {
    if (to.isTensor()) {
      if (to.toTensor().defined()) to.toTensor().copy_(from.toTensor());
    } else if (to.isTensorList()) {
      const auto sources = from.toTensorVector(), targets = to.toTensorVector();
      TORCH_CHECK(sources.size() == targets.size(), "a list changed its size");
      for (size_t i = 0; i < sources.size(); ++i) targets[i].copy_(sources[i]);
    }
  }
};

// Tensors on the device like those without data; none for results that are
// arguments.
std::vector<c10::IValue> Allocate(const c10::FunctionSchema& schema,
                                  const std::vector<c10::IValue>& like,
                                  c10::DeviceIndex device) {
  const auto make = [&](const at::Tensor& t) {
    if (!t.defined()) return t;
    return at::empty_strided(t.sizes(), t.strides(),
                             at::TensorOptions().dtype(t.dtype()).device(
                                 at::Device(at::kCUDA, device)));
  };
  std::vector<c10::IValue> made(schema.returns().size());
  for (size_t i = 0; i < made.size(); ++i) {
    if (!Written(schema.returns()[i])) made[i] = MapTensors(like[i], make);
  }
  return made;
}

// The argument that a result is.
const c10::IValue& ArgumentOf(const c10::Argument& result,
                              const c10::FunctionSchema& schema,
                              const std::vector<c10::IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() &&
        alias->beforeSets() == result.alias_info()->beforeSets()) {
      return arguments[i];
    }
  }
  TORCH_CHECK(false, schema.name(), " returns something it wasn't given");
}

void Push(const c10::FunctionSchema& schema,
          const std::vector<c10::IValue>& arguments,
          const std::vector<c10::IValue>& made, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, arguments.size());
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const c10::Argument& result = schema.returns()[i];
    stack->push_back(Written(result) ? ArgumentOf(result, schema, arguments)
                                     : made[i]);
  }
}

std::vector<c10::IValue> HostAliases(const std::vector<c10::IValue>& values) {
  std::vector<c10::IValue> made;
  for (const c10::IValue& value : values) {
    made.push_back(MapTensors(value, HostAlias));
  }
  return made;
}

// Computes on the host's thread, once all that the stream had is done, and
// copies what has been made to the device.
void RunSeeingData(const c10::OperatorHandle& op,
                   const std::vector<c10::IValue>& arguments,
                   c10::DeviceIndex device, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  Work scan;  // the first half of what a device does: count
  scan.name = NameOf(op);
  AddSpans(schema, arguments, {}, &scan);
  scan.cost = CostOf(schema, arguments, {});
  scan.run = [] { return Progress::kDone; };
  EnqueueOn(device, std::move(scan));
  WaitForStreamOf(device, NameOf(op));
  HostCall call{op, ArgumentsOn(schema, arguments, at::kCPU, HostAlias), {}};
  const std::vector<c10::IValue> computed = call.Call();
  const std::vector<c10::IValue> made = Allocate(schema, computed, device);
  Work store;
  store.name = NameOf(op) + " (store)";
  store.cost.launches = 0;
  AddSpans(schema, {}, made, &store);
  store.run = [computed, aliases = HostAliases(made)] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (size_t i = 0; i < aliases.size(); ++i) {
      HostCall::Store(computed[i], aliases[i]);
    }
    return Progress::kDone;
  };
  if (!store.writes.empty()) EnqueueOn(device, std::move(store));
  Push(schema, arguments, made, stack);
}

}  // namespace

void RunByCpuKernel(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                    torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::vector<c10::IValue> arguments =
      torch::jit::last(*stack, schema.arguments().size()).vec();
  c10::DeviceIndex device = DeviceOf(arguments);
  if (device < 0) device = c10::cuda::current_device();
  CheckDevices(op, arguments, device);
  const c10::cuda::CUDAGuard on_device(device);
  if (DependsOnData(op, arguments)) {
    return RunSeeingData(op, arguments, device, stack);
  }
  const std::vector<c10::IValue> made =
      Allocate(schema, ResultsWithoutData(op, arguments), device);
  auto call = std::make_shared<HostCall>(
      HostCall{op, ArgumentsOn(schema, arguments, at::kCPU, HostAlias),
               HostAliases(made), InFloat32(NameOf(op))});
  Work work;
  work.name = NameOf(op);
  work.cost = CostOf(schema, arguments, made);
  AddSpans(schema, arguments, made, &work);
  work.run = [call] {
    call->Run();
    return Progress::kDone;
  };
  if (!work.writes.empty() || schema.returns().empty()) {
    EnqueueOn(device, std::move(work));
  }
  Push(schema, arguments, made, stack);
}

void RefuseOperator(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                    torch::jit::Stack* /*stack*/) {
  TORCH_CHECK(false, "the stand-in CUDA device has no ", op.operator_name(),
              ": add it to testing/standin/operators");
}

}  // namespace capstan::standin
