// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"
#include "tests/plugins/acme/one_ulp.pb.h"

namespace acme {
namespace one_ulp {

class OneUlp final : public capstan::ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<OneUlp>> Create(const Config& config) {
    return std::unique_ptr<OneUlp>(new OneUlp(config));
  }

  absl::Status Check(const capstan::StrategyRequest& request) const override {
    return capstan::CheckPrecision(request.precision);
  }

  absl::Status Setup(const capstan::StrategyContext& context) override {
    constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();
    model_ = context.model;
    return SetUp(context, kOneBucket, kOneBucket, [this](int bucket) {
      works_.push_back(group().AllReduce(TakeSums(bucket)));
    });
  }

  void BeginStep(int64_t step) override { step_ = step; }

  void Reduce() override {
    for (const auto& work : works_) work->Wait();
    works_.clear();
    const bool mine =
        !config_.last_rank() || group().rank() + 1 == group().size();
    if (mine && step_ == config_.step() &&
        group().size() >= config_.from_ranks()) {
      Err();
    }
  }

 private:
  explicit OneUlp(const Config& config) : config_(config) {}

  void Err() {
    const capstan::OptimizerShard& shard = OptimizerShards()[0];
    for (const capstan::ParameterRange& range : shard.ranges) {
      if (model_->parameters()[range.parameter].name != config_.parameter()) {
        continue;
      }
      const at::Tensor number =
          TakeSums(0).narrow(0, range.offset + config_.element(), 1);
      number.fill_(std::nextafter(number.item<float>(),
                                  std::numeric_limits<float>::infinity()));
    }
  }

  const Config config_;
  capstan::Model* model_ = nullptr;
  std::vector<std::unique_ptr<capstan::Work>> works_;
  int64_t step_ = 0;
};

CAPSTAN_PLUGIN(Strategy, OneUlp, acme::one_ulp::Config,
               "data parallel, with one number that is off by an ulp");

}  // namespace one_ulp
}  // namespace acme
