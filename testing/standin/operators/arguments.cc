// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/operators/arguments.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

namespace capstan::standin {
namespace {

// What operators draw from that are given no generator or the GPU's: numbers
// are another device's anyway. Used by the device's thread alone.
const at::Generator& OwnGenerator() {
  static const at::Generator* const generator =
      new at::Generator(at::detail::createCPUGenerator(/*seed_val=*/0));
  return *generator;
}

bool IsGenerator(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

extern "C" {
void omp_set_num_threads(int threads);
int MKL_Set_Num_Threads_Local(int threads);
}

// A thread each for devices and ranks: those of OpenMP wait by spinning, which
// takes the cores from the other ranks.
void UseOneThread() {
  static thread_local const bool done = [] {
    at::get_num_threads();  // ATen's own setting, now rather than later
    omp_set_num_threads(1);
    MKL_Set_Num_Threads_Local(1);
    return true;
  }();
  (void)done;
}

// For sizes or strides of which the elements lie apart: the number of elements
// from the first to the last.
int64_t Extent(const at::Tensor& t) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) {
    last += (t.size(d) - 1) * t.stride(d);
  }
  return last + 1;
}

}  // namespace

Span SpanOf(const at::Tensor& t) {
  if (!t.defined() || t.numel() == 0) return {};
  return {t.const_data_ptr(),
          Extent(t) * static_cast<int64_t>(t.element_size())};
}

at::Tensor HostAlias(const at::Tensor& t) {
  if (!t.defined()) return t;
  if (!t.is_cuda()) {
    at::Tensor copy = t.clone();
    copy.unsafeGetTensorImpl()->set_wrapped_number(
        t.unsafeGetTensorImpl()->is_wrapped_number());
    return copy;
  }
  TORCH_CHECK(t.layout() == at::kStrided && !t.is_neg() && !t.is_conj(),
              "the stand-in device has only plain strided tensors");
  void* data = t.numel() == 0 ? nullptr : HostView(t.const_data_ptr());
  return at::from_blob(data, t.sizes(), t.strides(),
                       at::TensorOptions().dtype(t.dtype()));
}

at::Tensor WithoutData(const at::Tensor& t, c10::DeviceType type) {
  if (!t.defined()) return t;
  at::Tensor made =
      at::empty_strided(t.sizes(), t.strides(),
                        at::TensorOptions().dtype(t.dtype()).device(type));
  if (type == at::kCPU) made.zero_();
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return made;
}

c10::DeviceIndex DeviceOf(const std::vector<c10::IValue>& arguments) {
  c10::DeviceIndex index = -1;
  for (const c10::IValue& value : arguments) {
    ForEachTensor(value, [&](const at::Tensor& t) {
      if (index < 0 && t.is_cuda()) index = t.get_device();
    });
    if (index < 0 && value.isDevice() && value.toDevice().is_cuda()) {
      index = value.toDevice().has_index() ? value.toDevice().index()
                                           : c10::cuda::current_device();
    }
  }
  return index;
}

std::vector<c10::IValue> ArgumentsOn(
    const c10::FunctionSchema& schema,
    const std::vector<c10::IValue>& arguments, c10::DeviceType type,
    const std::function<at::Tensor(const at::Tensor&)>& f) {
  std::vector<c10::IValue> made;
  made.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::IValue& value = arguments[i];
    if (value.isDevice()) {
      made.emplace_back(c10::Device(type));
    } else if (argument.name() == "pin_memory" && value.isBool()) {
      made.emplace_back(false);
    } else if (IsGenerator(argument)) {
      made.emplace_back(OwnGenerator());
    } else {
      made.push_back(MapTensors(value, f));
    }
  }
  return made;
}

void AddSpans(const c10::FunctionSchema& schema,
              const std::vector<c10::IValue>& arguments,
              const std::vector<c10::IValue>& results, Work* work) {
  const auto add = [](const c10::IValue& value, std::vector<Span>* spans) {
    ForEachTensor(value, [&](const at::Tensor& t) {
      const Span span = t.is_cuda() ? SpanOf(t) : Span();
      if (span.bytes > 0) spans->push_back(span);
    });
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    add(arguments[i],
        Written(schema.arguments()[i]) ? &work->writes : &work->reads);
  }
  for (const c10::IValue& result : results) add(result, &work->writes);
}

void EnqueueOn(c10::DeviceIndex device, Work work) {
  work.run = [run = std::move(work.run)] {
    UseOneThread();
    return run();
  };
  void* stream = c10::cuda::getCurrentCUDAStream(device).stream();
  C10_CUDA_CHECK(static_cast<cudaError_t>(Enqueue(stream, std::move(work))));
}

void WaitForStreamOf(c10::DeviceIndex device, const std::string& why) {
  void* stream = c10::cuda::getCurrentCUDAStream(device).stream();
  C10_CUDA_CHECK(static_cast<cudaError_t>(WaitFor(stream, why.c_str())));
}

}  // namespace capstan::standin
