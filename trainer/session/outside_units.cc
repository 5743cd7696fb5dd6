// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/outside_units.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

thread_local OutsideUnits* looking = nullptr;
thread_local int inside = 0;

// Those whose result may share its memory with an argument read nothing; what
// reads then follows as an operator of its own.
bool MakesView(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  // LibTorch registers detach by hand.
  if (!schema.has_value()) return function.name() == std::string("detach");
  for (const c10::Argument& argument : schema->arguments()) {
    const c10::AliasInfo* const alias = argument.alias_info();
    if (alias != nullptr && !alias->isWrite()) return true;
  }
  return false;
}

// Trainable parameters are such leaves, and so may be what an objective has
// made for itself.
bool IsTrainedLeaf(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_leaf() && tensor.requires_grad() &&
         tensor.numel() > 0;
}

// The leaf that is read with `tensor`: what reads a view of a parameter reads
// the parameter.
at::Tensor LeafOf(const at::Tensor& tensor) {
  const bool viewed =
      !IsTrainedLeaf(tensor) && tensor.defined() && tensor.is_view();
  return viewed ? at::Tensor(tensor._base()) : tensor;
}

// The tensors of an operator's argument.
std::vector<at::Tensor> TensorsIn(const c10::IValue& input) {
  if (input.isTensor()) return {input.toTensor()};
  return input.isTensorList() ? input.toTensorVector()
                              : std::vector<at::Tensor>();
}

}  // namespace

OutsideUnits::Inside::Inside() { ++inside; }
OutsideUnits::Inside::~Inside() { --inside; }

OutsideUnits::OutsideUnits(const std::vector<ParameterSpec>& specs)
    : specs_(specs) {
  looking = this;
  handle_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&OnOperator)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
}

OutsideUnits::~OutsideUnits() {
  at::removeCallback(handle_);
  looking = nullptr;
}

std::unique_ptr<at::ObserverContext> OutsideUnits::OnOperator(
    const at::RecordFunction& function) {
  if (looking != nullptr && inside == 0 && looking->found_.empty()) {
    looking->Look(function);
  }
  return nullptr;
}

void OutsideUnits::Look(const at::RecordFunction& function) {
  if (MakesView(function)) return;
  for (const c10::IValue& input : function.inputs()) {
    for (const at::Tensor& tensor : TensorsIn(input)) {
      const at::Tensor leaf = LeafOf(tensor);
      if (!IsTrainedLeaf(leaf)) continue;
      for (const ParameterSpec& spec : specs_) {
        if (!spec.trainable || leaf.sizes() != at::IntArrayRef(spec.shape)) {
          continue;
        }
        found_ = absl::StrCat("'", spec.name, "' in ", function.name());
        return;
      }
    }
  }
}

}  // namespace capstan
