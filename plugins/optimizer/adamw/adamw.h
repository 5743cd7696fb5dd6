// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_OPTIMIZER_ADAMW_ADAMW_H_
#define CAPSTAN_PLUGINS_OPTIMIZER_ADAMW_ADAMW_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/optimizer/adamw.h"
#include "plugins/optimizer/adamw/adamw.pb.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {
namespace adamw {

// Adam with decoupled weight decay (formula in kernels/optimizer/adamw.h), in
// one pass over a shard's flat buffers. Masters and state are float32.
class AdamW final : public Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(const Config& config);

  double learning_rate() const override { return settings_.learning_rate; }
  std::vector<std::string> state_names() const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  // Overwrites the gradient on a GPU.
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override;

 private:
  explicit AdamW(const kernels::AdamWOptions& settings) : settings_(settings) {}

  const kernels::AdamWOptions settings_;  // except what changes per step
};

}  // namespace adamw
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OPTIMIZER_ADAMW_ADAMW_H_
