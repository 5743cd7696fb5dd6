// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_STRATEGY_H_
#define CAPSTAN_PLUGINS_SDK_STRATEGY_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plan.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// A strategy's inputs; all outlive it. The strategy allocates memory within the
// MemoryScope of its category.
struct StrategyContext {
  Model* model = nullptr;
  ProcessGroup* group = nullptr;  // never null; a group of one for one rank
  PrecisionPolicy precision;
  uint64_t seed = 0;
  // As in StrategyRequest.
  const Optimizer* optimizer = nullptr;
  bool deterministic = false;
};

// A slice [begin, end) of OptimizerShards()[shard] that this rank saves.
struct OwnedSlice {
  int shard = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Distributes parameters, gradients and optimizer work over the ranks. Nothing
// else depends on it: the loss curve is the same under every strategy.
//
// A step, on every rank alike:
//   BeginStep(step)
//   for i in 0 .. n-1:
//     BeginMicroStep(i, n); forward through the unit runner; loss.backward()
//   FinishBackward()
//   GradientSquaredSum() -> summed over the ranks
//   unless the step is skipped:
//     for each of OptimizerShards(): the optimizer updates it; PublishShard(i)
//     PublishParameters()
// Without gradients, for evaluation and samples:
//   forward through the unit runner; FinishForward()
// All calls come from the thread that called Setup, except the unit callbacks
// in backward, which come from the autograd thread while the former waits.
class Strategy {
 public:
  virtual ~Strategy();

  // Checks that the strategy supports the request (number of ranks, dtypes).
  // Called before any process is spawned.
  virtual absl::Status Check(const StrategyRequest& request) const = 0;

  // Predicts what it will hold and send. Called after Check; allocates nothing.
  virtual StrategyPlan Plan(const StrategyRequest& request) const = 0;

  // In a deterministic run: whether gradients are summed over the ranks in each
  // micro-step and then over the micro-steps, rather than the other way round.
  // In micro-step i of n, rank r of w then takes micro-batch i * w + r of the
  // global batch, otherwise r * n + i, so that either order sums along the same
  // binary tree. Constant.
  virtual bool SumsEachMicroStep() const { return false; }

  // Allocates its buffers, fills this rank's masters with the model's initial
  // values and binds the working parameters to the model. Called once, first.
  // No collectives but Split, whose failure is collective: a rank that fails
  // here would leave the others waiting. The core then publishes the shards.
  virtual absl::Status Setup(const StrategyContext& context) = 0;

  // The shards that this rank's optimizer updates. Valid after Setup; the
  // tensors stay the same for the strategy's lifetime.
  virtual absl::Span<OptimizerShard> OptimizerShards() = 0;

  // Begins step `step` of the run: 1 for the first, counting on after a resume.
  // Called before BeginMicroStep(0, n), and again if the step failed and is
  // retried.
  virtual void BeginStep(int64_t step) {}

  // Begins micro-step `index` of `count`; index 0 drops the last step's
  // gradients.
  virtual void BeginMicroStep(int index, int count) = 0;

  // Whether the callbacks below are called; if not, units cost nothing.
  virtual bool wants_unit_callbacks() const { return false; }
  virtual void PreForward(int unit) {}
  virtual void PostForward(int unit) {}
  virtual void PreBackward(int unit) {}
  // Whether a forward contains collectives, so that all ranks must run the same
  // number of them.
  virtual bool collective_forward() const { return false; }
  // Ends a forward without backward, even one that threw: completes its
  // collectives. A rank that can't run a forward that the others run calls only
  // this.
  virtual void FinishForward() {}

  // Ends the micro-steps: completes the collectives, including those of
  // parameters that no micro-step used (their gradient is 0). Also called after
  // a micro-step that threw, so that no other rank is left waiting.
  virtual void FinishBackward() = 0;

  // This rank's share of the squared global norm of the summed gradient: the
  // shares of all ranks add up to it. May be non-finite. A float64 scalar on
  // the gradients' device; doesn't block.
  virtual at::Tensor GradientSquaredSum() = 0;

  // Tells that the optimizer or a checkpoint has written shard `shard`, master
  // and working copy. The strategy may start to send it while the next ones are
  // written. Called once per shard, in the order of OptimizerShards().
  virtual void PublishShard(int shard) {}

  // Tells that all shards have been written. After it returns, the model
  // computes with the masters' values on all ranks.
  virtual void PublishParameters() = 0;

  // The slices of its shards that this rank writes to a checkpoint. Over all
  // ranks they cover each element exactly once.
  virtual std::vector<OwnedSlice> OwnedSlices() const = 0;

  // Names of the strategy's own state, if it isn't a function of the masters:
  // the momentum of an outer optimizer, the weights at the last
  // synchronisation. Constant.
  virtual std::vector<std::string> state_names() const { return {}; }
  // The state of OptimizerShards()[shard]: one tensor per name, shaped like its
  // master; the same from Setup on. Checkpoints save the slices in
  // OwnedSlices(), by parameter, and restore them before PublishShard, on any
  // number of ranks; what a checkpoint lacks stays as Setup left it.
  virtual std::vector<at::Tensor> ShardState(int shard) { return {}; }

  // Calls fn(index, tensor) on rank 0 for each parameter in order, with its
  // whole value in the master dtype, on CPU, in spec.shape; the tensor is valid
  // during the call. Collective: all ranks call it.
  virtual absl::Status ForEachFullParameter(
      const std::function<absl::Status(int index, const at::Tensor& value)>&
          fn) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_STRATEGY_H_
