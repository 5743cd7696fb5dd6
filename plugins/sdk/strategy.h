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

// What a strategy works with; all outlive it. What it allocates it allocates
// in the MemoryScope that says what for.
struct StrategyContext {
  Model* model = nullptr;
  ProcessGroup* group = nullptr;  // never null; a group of one for one rank
  PrecisionPolicy precision;
  uint64_t seed = 0;
  // Since minor version 2. What StrategyRequest::optimizer was.
  const Optimizer* optimizer = nullptr;
};

// A slice [begin, end) of OptimizerShards()[shard] that this rank saves.
struct OwnedSlice {
  int shard = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// How parameters, gradients and optimizer work are spread over the ranks, and
// nothing else: the loss curve is the same under every strategy.
//
// A step of the core, on every rank alike:
//   BeginStep(step)
//   for i in 0 .. n-1:
//     BeginMicroStep(i, n); forward through the unit runner; loss.backward()
//   FinishBackward()
//   GradientSquaredSum() -> summed over the ranks
//   unless the step is skipped:
//     for each of OptimizerShards(): the optimizer updates it; PublishShard(i)
//     PublishParameters()
// and without gradients, for evaluation and samples:
//   forward through the unit runner; FinishForward()
// All calls come from the thread that called Setup, except the unit callbacks
// in backward, which come from the autograd thread while that one waits.
class Strategy {
 public:
  virtual ~Strategy();

  // Whether it can do that: number of ranks, dtypes. Called before anything is
  // spawned.
  virtual absl::Status Check(const StrategyRequest& request) const = 0;

  // What it will hold and send. Called after Check, allocates nothing.
  virtual StrategyPlan Plan(const StrategyRequest& request) const = 0;

  // Allocates its buffers, fills this rank's masters with the model's initial
  // values and binds the working parameters to the model. Once, before all
  // else. Without collectives that a rank which fails here would leave the
  // others in (Split, which they give up together, is allowed): what it has
  // written is published afterwards, as after an update.
  virtual absl::Status Setup(const StrategyContext& context) = 0;

  // What this rank's optimizer updates. Valid from Setup on; the tensors stay
  // the same for the strategy's life.
  virtual absl::Span<OptimizerShard> OptimizerShards() = 0;

  // Micro-step `index` of `count` begins; at 0 the last step's gradients are
  // dropped.
  virtual void BeginMicroStep(int index, int count) = 0;

  // Whether the callbacks below are wanted; if not, units cost nothing.
  virtual bool wants_unit_callbacks() const { return false; }
  virtual void PreForward(int unit) {}
  virtual void PostForward(int unit) {}
  virtual void PreBackward(int unit) {}
  // Whether a forward through them holds collectives, so that all ranks must
  // run as many.
  virtual bool collective_forward() const { return false; }
  // A forward without backward is over, or broke off: completes its
  // collectives. A rank that can't run a forward which the others run calls
  // this alone.
  virtual void FinishForward() {}

  // All micro-steps are done: completes the collectives, also those of
  // parameters that no micro-step used (their gradient is 0). Called after a
  // micro-step that threw, too, so that no other rank is left waiting.
  virtual void FinishBackward() = 0;

  // This rank's share of the sum of squares of the summed gradient: the shares
  // of all ranks add up to the square of its global norm. May be non-finite. A
  // float64 scalar, on the device where the gradient lies: no one waits for it
  // here.
  virtual at::Tensor GradientSquaredSum() = 0;

  // Shard `shard` has just been written, master and working copy, by the
  // optimizer or from a checkpoint; a strategy may start to send it while the
  // next ones are written. In the order of OptimizerShards(), each once.
  virtual void PublishShard(int shard) {}

  // All shards have been written: from now on the model computes with the
  // masters' values on all ranks.
  virtual void PublishParameters() = 0;

  // Which parts of its shards this rank writes into a checkpoint; over all
  // ranks each element exactly once.
  virtual std::vector<OwnedSlice> OwnedSlices() const = 0;

  // Calls fn(index, tensor) on rank 0 for each parameter in order, with its
  // whole value in the master dtype, on CPU, in spec.shape; the tensor is
  // valid during the call. Collective: all ranks call it.
  virtual absl::Status ForEachFullParameter(
      const std::function<absl::Status(int index, const at::Tensor& value)>&
          fn) = 0;

  // Since minor version 2.

  // Step `step` of the run begins: 1 for the first, counted on after a resume.
  // Called before BeginMicroStep(0, n); for the same step again where one has
  // failed.
  virtual void BeginStep(int64_t step) {}

  // Names of the strategy's own state, for one that isn't a function of the
  // masters: an outer optimizer's momentum, the weights of the last
  // synchronisation. Constant.
  virtual std::vector<std::string> state_names() const { return {}; }
  // The state of OptimizerShards()[shard], a tensor a name, shaped as its
  // master. Valid from Setup on; the tensors stay the same. Checkpoints save
  // what OwnedSlices() says of them, by parameter, and restore it before
  // PublishShard, on any number of ranks; what a checkpoint of another
  // strategy doesn't have stays as Setup left it.
  virtual std::vector<at::Tensor> ShardState(int shard) { return {}; }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_STRATEGY_H_
