// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_UNIT_RUNNER_H_
#define CAPSTAN_PLUGINS_SDK_UNIT_RUNNER_H_

#include <ATen/core/Tensor.h>

#include <functional>

namespace capstan {

// Runs a unit. Strategies gather and free its parameters around Run.
class UnitRunner {
 public:
  using Body = std::function<at::Tensor(const at::Tensor& input)>;
  virtual ~UnitRunner();
  // Returns body(input); `unit` indexes Model::units(). Backward may call
  // `body` again (activation checkpointing), so it must capture by value.
  virtual at::Tensor Run(int unit, const at::Tensor& input,
                         const Body& body) = 0;
};

// Runs units without callbacks, for a model whose parameters are whole.
class PlainRunner final : public UnitRunner {
 public:
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_UNIT_RUNNER_H_
