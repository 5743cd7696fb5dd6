// SPDX-License-Identifier: Apache-2.0
//
// Which of ATen's operators on the CUDA key keep LibTorch's kernel, and what
// the others get. The runtime opens this library once LibTorch's own kernels
// are registered.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

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

// The operators that would be replaced: each is named while it runs, so that
// the launches of its kernels, and of what it calls, are noted as its own.
void NameOperators(const std::vector<c10::OperatorHandle>& replaced) {
  static auto* const names =
      new std::unordered_map<c10::OperatorName, std::string>;
  for (const auto& op : replaced) {
    names->emplace(op.operator_name(), op.operator_name().name);
  }
  // copy_ has a kernel for all devices, from which AddCopies takes it.
  names->emplace(c10::OperatorName("aten::copy_", ""), "aten::copy_");
  struct Outermost : at::ObserverContext {};
  at::addGlobalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& call)
              -> std::unique_ptr<at::ObserverContext> {
            const auto name = call.operator_name();
            if (!name.has_value() || OperatorIsNamed()) return nullptr;
            const auto found = names->find(*name);
            if (found == names->end()) return nullptr;
            NameOperator(found->second.c_str());
            return std::make_unique<Outermost>();
          },
          [](const at::RecordFunction& /*call*/, at::ObserverContext* context) {
            if (context != nullptr) NameOperator(nullptr);
          })
          .scopes({at::RecordScope::FUNCTION}));
}

void Replace(torch::Library* library, const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  const std::string full = name.overload_name.empty()
                               ? name.name
                               : name.name + "." + name.overload_name;
  library->impl(
      full.c_str(),
      RunsOnCpu(op)
          ? torch::CppFunction::makeFromBoxedFunction<&RunByCpuKernel>()
          : torch::CppFunction::makeFromBoxedFunction<&RefuseOperator>());
}

void Install() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> replaced;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
        !KeepsItsKernel(*op)) {
      replaced.push_back(*op);
    }
  }
  if (RunsHostCode()) {
    // It costs time, which a run without a trace measures.
    if (Setting("trace", "").empty()) return;
    return NameOperators(replaced);
  }
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const auto& op : replaced) Replace(library, op);
  AddAttention(*library);
  AddProducts(*library);
  AddCopies(*library);
}

__attribute__((constructor)) void OnLoad() { Install(); }

}  // namespace
}  // namespace capstan::standin
