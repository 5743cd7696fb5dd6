// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/strategy_runner.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include "base/progress.h"
#include "plugins/sdk/memory.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/offloaded_inputs.h"
#include "trainer/session/outside_units.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// As profiling tools know a unit.
const char* RangeName(const std::string* unit) {
  return unit == nullptr ? "unit" : unit->c_str();
}

// A unit's body, saved for backward.
struct KeptBody : public torch::CustomClassHolder {
  KeptBody(UnitRunner::Body body, Strategy* strategy, int unit,
           const std::string* name, const PluginNames& plugins)
      : body(std::move(body)),
        strategy(strategy),
        unit(unit),
        name(name),
        plugins(plugins) {}
  UnitRunner::Body body;
  Strategy* const strategy;  // null: wants no callbacks
  const int unit;
  const std::string* const name;
  const PluginNames& plugins;
  std::shared_ptr<OffloadedInputs::Input> offloaded;  // null: saved as it is
};

// Saves a unit's input and rebuilds its graph in backward. The inner backward
// writes the gradients of the unit's parameters.
class RecomputedUnit : public torch::autograd::Function<RecomputedUnit> {
 public:
  // `marker` requires a gradient, so that backward gets here even if only the
  // unit's parameters need one.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input,
                            const at::Tensor& marker,
                            const c10::intrusive_ptr<KeptBody>& kept) {
    if (kept->offloaded == nullptr) ctx->save_for_backward({input});
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    return kept->body(input);  // grad mode is off here
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kept = c10::static_intrusive_pointer_cast<KeptBody>(
        ctx->saved_data["kept"].toCapsule());
    const Range range(RangeName(kept->name));
    if (kept->strategy != nullptr) {
      const WhoseCode code(kept->plugins.strategy, "PreBackward", kept->name);
      kept->strategy->PreBackward(kept->unit);
    }
    at::Tensor input = kept->offloaded == nullptr
                           ? ctx->get_saved_variables()[0].detach()
                           : kept->offloaded->Take();
    const bool wanted = ctx->needs_input_grad(0);
    input.set_requires_grad(wanted);
    at::Tensor output;
    {
      const at::AutoGradMode with_gradients(true);
      const MemoryScope scope(MemoryCategory::kActivations);
      const WhoseCode code(kept->plugins.model, "recomputing", kept->name);
      output = kept->body(input);
    }
    if (output.requires_grad()) {
      torch::autograd::backward({output}, {grads[0]});
    }
    return {wanted ? input.grad() : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

StrategyRunner::StrategyRunner(Strategy* strategy,
                               const ActivationCheckpointing& checkpointing,
                               const std::vector<std::string>* names,
                               const PluginNames* plugins)
    : strategy_(strategy),
      checkpointing_(checkpointing),
      names_(names),
      plugins_(plugins) {
  static const PluginNames* const unknown = new PluginNames;
  if (plugins_ == nullptr) plugins_ = unknown;
}

StrategyRunner::~StrategyRunner() = default;

void StrategyRunner::Call(void (Strategy::*callback)(int), const char* name,
                          int unit) {
  const WhoseCode code(plugins_->strategy, name, NameOf(unit));
  (strategy_->*callback)(unit);
}

at::Tensor StrategyRunner::Run(int unit, const at::Tensor& input,
                               const Body& body) {
  ran_ = true;
  CountProgress();
  const OutsideUnits::Inside inside;
  const std::string* const name = NameOf(unit);
  const Range range(RangeName(name));
  const bool callbacks = callbacks_ && strategy_->wants_unit_callbacks();
  if (callbacks) Call(&Strategy::PreForward, "PreForward", unit);
  at::Tensor output;
  if (at::GradMode::is_enabled() && checkpointing_.Covers(unit) &&
      input.is_floating_point()) {
    const at::Tensor marker =
        at::empty({0}, input.options()).set_requires_grad(true);
    const auto kept = c10::make_intrusive<KeptBody>(
        body, callbacks ? strategy_ : nullptr, unit, name, *plugins_);
    if (checkpointing_.offload) {
      if (offloaded_ == nullptr) {
        offloaded_ = std::make_unique<OffloadedInputs>(input.device());
      }
      kept->offloaded = offloaded_->Add(input.detach());
    }
    {
      const WhoseCode code(plugins_->model, "", name);
      output = RecomputedUnit::apply(input, marker, kept);
    }
    if (callbacks) Call(&Strategy::PostForward, "PostForward", unit);
    return output;
  }
  if (offloaded_ != nullptr) offloaded_->Release();
  {
    const WhoseCode code(plugins_->model, "", name);
    output = body(input);
  }
  if (callbacks) Call(&Strategy::PostForward, "PostForward", unit);
  if (callbacks && output.requires_grad()) {
    // The first part of the unit that backward reaches.
    output.register_hook([strategy = strategy_, unit, name,
                          plugins = plugins_](const at::Tensor&) {
      const WhoseCode code(plugins->strategy, "PreBackward", name);
      strategy->PreBackward(unit);
    });
  }
  return output;
}

}  // namespace capstan
