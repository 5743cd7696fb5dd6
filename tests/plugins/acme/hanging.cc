// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/collective_label.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"
#include "tests/plugins/acme/hanging.pb.h"

namespace acme {
namespace hanging {

// A name to be found in stacks.
__attribute__((noinline)) void SpinsForEver(const std::atomic<bool>& never) {
  while (!never) {
  }
}

class Hanging final : public capstan::ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<Hanging>> Create(const Config& config) {
    return std::unique_ptr<Hanging>(new Hanging(config));
  }

  absl::Status Check(const capstan::StrategyRequest& request) const override {
    return capstan::CheckPrecision(request.precision);
  }

  absl::Status Setup(const capstan::StrategyContext& context) override {
    constexpr int64_t kBucketBytes = 64 << 10;
    return SetUp(context, kBucketBytes, kBucketBytes,
                 [this](int bucket) { Start(bucket); });
  }

  void BeginStep(int64_t step) override { step_ = step; }

  void Reduce() override {
    for (const auto& work : works_) work->Wait();
    works_.clear();
  }

 private:
  explicit Hanging(const Config& config) : config_(config) {}

  void Start(int bucket) {
    const capstan::CollectiveLabel label("bucket", bucket);
    const at::Tensor gradients_here = gradients().Take(bucket);
    if (step_ == config_.step() && group().rank() == config_.rank()) {
      const std::atomic<bool> never{false};
      if (config_.fault() == Config::SPIN) SpinsForEver(never);
      while (config_.fault() == Config::SLEEP) pause();
      const at::Tensor all = at::empty(
          {gradients_here.numel() * group().size()}, gradients_here.options());
      works_.push_back(group().AllGather(all, gradients_here));
      return;
    }
    works_.push_back(group().AllReduce(gradients_here));
  }

  const Config config_;
  int64_t step_ = 0;
  std::vector<std::unique_ptr<capstan::Work>> works_;
};

CAPSTAN_PLUGIN(Strategy, Hanging, acme::hanging::Config,
               "data parallel until a step that never ends");

}  // namespace hanging
}  // namespace acme
