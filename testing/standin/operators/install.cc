// SPDX-License-Identifier: Apache-2.0
//
// Which of ATen's operators on the CUDA key keep LibTorch's kernel, and what
// the others get. The runtime opens this library once LibTorch's own kernels
// are registered.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <set>
#include <string>

#include "testing/standin/operators/arguments.h"
#include "testing/standin/operators/boxed.h"
#include "testing/standin/operators/special.h"

namespace capstan::standin {
namespace {

// Host code in LibTorch: allocation, metadata, choices, and what only calls
// other operators or CUDA's runtime.
bool KeepsItsKernel(const c10::OperatorHandle& op) {
  static const std::set<std::string>* const kNames = new std::set<std::string>{
      "aten::empty",
      "aten::empty_strided",
      "aten::resize_",
      "aten::set_",
      "aten::record_stream",
      "aten::is_pinned",
      "aten::_pin_memory",
      "aten::is_set_to",
      "aten::_fused_sdp_choice",
      "aten::_local_scalar_dense",  // cudaMemcpyAsync and a wait
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_flash_attention_backward",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_efficient_attention_backward",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_scaled_dot_product_cudnn_attention_backward",
      "aten::_reshape_copy"};
  if (kNames->count(op.operator_name().name) > 0) return true;
  for (const c10::Argument& result : op.schema().returns()) {  // views
    if (result.alias_info() != nullptr && !Written(result)) return true;
  }
  return false;
}

bool RunsOnCpu(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(
             c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(
             c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// LibTorch warns of each kernel that is replaced.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

void Install() {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) ||
        KeepsItsKernel(*op)) {
      continue;
    }
    const std::string full = name.overload_name.empty()
                                 ? name.name
                                 : name.name + "." + name.overload_name;
    library->impl(
        full.c_str(),
        RunsOnCpu(*op)
            ? torch::CppFunction::makeFromBoxedFunction<&RunByCpuKernel>()
            : torch::CppFunction::makeFromBoxedFunction<&RefuseOperator>());
  }
  AddAttention(*library);
  AddProducts(*library);
  AddCopies(*library);
}

__attribute__((constructor)) void OnLoad() { Install(); }

}  // namespace
}  // namespace capstan::standin
