// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_STRATEGY_H_
#define CAPSTAN_PLUGINS_SDK_STRATEGY_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plan.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

class HeldGradients;  // held_gradients.h

// They outlive the strategy, which allocates in its category's MemoryScope.
struct StrategyContext {
  Model* model = nullptr;
  ProcessGroup* group = nullptr;  // never null; a group of one for one rank
  PrecisionPolicy precision;
  uint64_t seed = 0;
  const Optimizer* optimizer = nullptr;  // as in StrategyRequest
  bool deterministic = false;            // as in StrategyRequest
};

struct OwnedSlice {
  int shard = 0;  // of OptimizerShards()
  int64_t begin = 0;
  int64_t end = 0;
};

enum class PublishCause {
  kInitial,   // after Setup: the masters are the model's initial values
  kRestored,  // a checkpoint was loaded
  kUpdated,   // the optimizer has updated the masters
};

// Distributes parameters, gradients and optimizer work over the ranks. A step,
// on every rank alike:
//   BeginStep; n times BeginMicroStep, a forward and a backward;
//   FinishBackward; GradientSquaredSum, which is summed over the ranks;
//   unless the step is skipped, for each shard the update and PublishShard,
//   then PublishParameters; EndStep.
// Forwards without backward end with FinishForward. All calls come from the
// thread that called Setup, but unit callbacks in backward from autograd's.
class Strategy {
 public:
  virtual ~Strategy();

  // Whether it supports the request. Called before any process is spawned.
  virtual absl::Status Check(const StrategyRequest& request) const = 0;

  // Returns what it will hold and send. Called after Check; allocates nothing.
  virtual StrategyPlan Plan(const StrategyRequest& request) const = 0;

  // Set if the curve isn't that of all other strategies. Constant.
  virtual absl::optional<OwnCurve> own_curve() const { return absl::nullopt; }

  // Whether replicas are trained apart between synchronisations (local SGD,
  // DiLoCo; docs/sdk.md), each by one rank or by those of replica_group().
  // OptimizerShards() then are this rank's part of its replica, laid out alike
  // in all replicas. Gradients aren't summed over replicas: what
  // GradientSquaredSum() says of all ranks holds for those of a replica.
  // OwnedSlices() are of SharedMaster() and ShardState(). Constant.
  virtual bool local_steps() const { return false; }
  // With local_steps(): returns the shared model of the last synchronisation,
  // the same bits in all replicas, shaped and valid like the shard's master.
  // May wait for one in progress, on all ranks alike.
  virtual at::Tensor SharedMaster(int shard) {
    return OptimizerShards()[shard].master;
  }
  // With local_steps(): sets whether the model computes with the shared model.
  // Called around evaluations on all ranks, and around samples on those that
  // sample; no step or save is in between. Has collectives only if forwards do.
  virtual void UseSharedModel(bool use) {}

  virtual HeldGradients* held_gradients() { return nullptr; }

  // Has no effect. It said how deterministic runs deal out micro-batches, while
  // the order of their sums mattered.
  virtual bool SumsEachMicroStep() const { return false; }

  // Allocates buffers, fills this rank's masters with initial values and binds
  // the working parameters. Called once, first. No collectives but Split, which
  // fails on all ranks: a rank that fails here would leave the others waiting.
  virtual absl::Status Setup(const StrategyContext& context) = 0;

  // Valid after Setup; the tensors stay the same for the strategy's lifetime.
  virtual absl::Span<OptimizerShard> OptimizerShards() = 0;

  // `step` counts from 1, on after a resume. Called again if a step is retried.
  virtual void BeginStep(int64_t step) {}

  // Index 0 drops the last step's gradients.
  virtual void BeginMicroStep(int index, int count) = 0;

  // Whether the callbacks below are called; if not, units cost nothing.
  virtual bool wants_unit_callbacks() const { return false; }
  virtual void PreForward(int unit) {}
  virtual void PostForward(int unit) {}
  virtual void PreBackward(int unit) {}
  // Whether a forward has collectives, so that all ranks must run as many.
  virtual bool collective_forward() const { return false; }
  // Completes the collectives of a forward without backward, even if that
  // threw. A rank that can't run a forward that the others run calls only this.
  virtual void FinishForward() {}

  // Completes the collectives, also of parameters that no micro-step used
  // (their gradient is 0) and after a micro-step that threw, since others wait.
  virtual void FinishBackward() = 0;

  // Returns this rank's share of the squared norm of the summed gradient: a
  // float64 scalar on the gradients' device, maybe not finite. Doesn't block.
  virtual at::Tensor GradientSquaredSum() = 0;

  // The optimizer or a checkpoint has written the shard's master and working
  // copy, and it may be sent. Called once per shard, in order.
  virtual void PublishShard(int shard) {}

  // After it returns, the model computes with the masters' values on all ranks.
  virtual void PublishParameters(PublishCause cause) = 0;

  // Ends a step, even a skipped one, before anything is evaluated or saved. Not
  // called if a rank failed in it. Collective. If it throws, the run ends.
  virtual void EndStep(int64_t step) {}

  // Completes what is pending (a synchronisation, say) before the last step is
  // evaluated, saved and exported. Collective. May be called again, also by a
  // resumed run. Not called if train.early_stopping_patience ends the run.
  virtual void BeforeExport() {}

  // Returns what this rank saves. Over all ranks, each element exactly once.
  virtual std::vector<OwnedSlice> OwnedSlices() const = 0;

  // Names of state that isn't a function of the masters. Constant.
  virtual std::vector<std::string> state_names() const { return {}; }
  // Returns one tensor per name, shaped like the shard's master; the same from
  // Setup on. Checkpoints save the OwnedSlices(), and restore them before
  // PublishShard; what they lack stays as Setup left it.
  virtual std::vector<at::Tensor> ShardState(int shard) { return {}; }

  // Collective. Calls fn on rank 0 for each parameter in order, with the whole
  // value in the master dtype, on CPU, in spec.shape, valid during the call;
  // with local_steps(), the shared model's.
  virtual absl::Status ForEachFullParameter(
      const std::function<absl::Status(int index, const at::Tensor& value)>&
          fn) = 0;

  // Functions that were added after 1.0, in the places of Rooms (plugin.h).

  // With local_steps(): the ranks that train this one's replica in step,
  // neighbours, as many for each replica. Null: this rank alone. Valid after
  // Setup.
  virtual ProcessGroup* replica_group();  // Room1
  // With a replica_group(): what this rank saves of its replica; each element
  // exactly once over that group.
  virtual std::vector<OwnedSlice> ReplicaSlices() const;  // Room2
  // The state after step `step` was loaded, from which the run goes on. Called
  // before PublishParameters.
  virtual void Restored(int64_t step);  // Room3

 private:
  // Room to grow (plugin.h).
  virtual void Room4();
  virtual void Room5();
  virtual void Room6();
  virtual void Room7();
  virtual void Room8();
};

// Creates the strategy with the config type `type` ("capstan.fsdp.Config"), for
// one that wraps another, which a config names in a google.protobuf.Any. Fails
// and is called as CreatePart (part.h).
absl::StatusOr<std::unique_ptr<Strategy>> CreateStrategy(
    const std::string& type, absl::string_view config);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_STRATEGY_H_
