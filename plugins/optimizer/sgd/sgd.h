// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_OPTIMIZER_SGD_SGD_H_
#define CAPSTAN_PLUGINS_OPTIMIZER_SGD_SGD_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/optimizer/sgd/sgd.pb.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {
namespace sgd {

// g = gradient + weight_decay * p; b = momentum * b + g;
// p -= lr * (nesterov ? g + momentum * b : b)
// (torch.optim.SGD; Sutskever et al., "On the importance of initialization and
// momentum in deep learning", 2013). Without momentum there is no state.
class Sgd final : public Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<Sgd>> Create(const Config& config);

  double learning_rate() const override { return config_.learning_rate(); }
  std::vector<std::string> state_names() const override;
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override;

 private:
  explicit Sgd(const Config& config) : config_(config) {}

  const Config config_;
};

}  // namespace sgd
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OPTIMIZER_SGD_SGD_H_
