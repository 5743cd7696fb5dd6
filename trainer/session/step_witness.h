// SPDX-License-Identifier: Apache-2.0
//
// train.witness on one rank: has products checked (kernels/witness), watches
// the memory of weights and optimizer state between their updates, what a
// forward keeps for its backward, and what collectives give; tells what failed,
// and decides when a step's gradients are computed again.
#ifndef CAPSTAN_TRAINER_SESSION_STEP_WITNESS_H_
#define CAPSTAN_TRAINER_SESSION_STEP_WITNESS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/context/witness.h"
#include "kernels/witness/memory_sums.h"
#include "kernels/witness/product_checker.h"
#include "trainer/session/session.h"
#include "trainer/session/witness_failures.h"
#include "trainer/session/witness_group.h"

namespace capstan {

class StepWitness final : private UpdateWitness, private KeptWitness {
 public:
  // Whether the run wants one: train.witness, on CPUs.
  static bool Wanted(const RunPlan& plan);

  // Call once the strategy and the optimizer's state are set up. `session`
  // outlives this; messages are those of its group.
  explicit StepWitness(Session* session);
  ~StepWitness() override;

  // Once, before the first step: takes over what the ranks before a restart
  // have counted, and says what every_steps leaves out. Collective.
  absl::Status Begin();
  // Mends weights whose memory has changed; nothing, if the step before isn't
  // checked. Before a rollout.
  void MendWeights();
  // Before a step's gradients are computed, each time: mends weights whose
  // memory has changed. If it isn't the first time, what the strategy has
  // published of them is to be published again after it. What begins from here
  // on to the next call is checked, or isn't (train.witness.every_steps).
  void BeginStep();
  // Once the gradients are complete, or a rank has failed to compute them:
  // whether a failure of any rank asks for them to be computed again. An error
  // after kMostAttempts. Collective.
  absl::StatusOr<bool> Again();
  // Around the update of a shard.
  void BeforeUpdate(size_t shard);
  void AfterUpdate(size_t shard);
  // After the step: tells the failures of all ranks since the last call, and
  // returns an error if the run is to end. Collective.
  absl::Status EndStep();
  // Before weights and state are saved or mirrored: mends them, and the same.
  // Collective.
  absl::Status BeforeSave();
  // After the last step: the same of what came after it, in an evaluation say,
  // and a sentence about the run. Collective.
  absl::Status End();
  // Something else than an update has written weights or state.
  void Replaced();

  // Of all ranks, in the latest step.
  int64_t failures_of_step() const { return failures_.latest(); }

  // For the process group's witness, which is made before this: a wrong message
  // of the set-up is told by the first that is made after it.
  static void TakeWrongMessage(const WrongMessage& wrong);
  static bool ChecksMessages();

 private:
  static constexpr int kMostAttempts = 3;

  // What a failure may have made wrong, by when it was.
  enum class Phase {
    kElsewhere,  // an evaluation, a rollout, a save
    kGradients,  // which can be computed again
    kUpdate      // from them to the step's end
  };
  using Blame = WitnessFailures::Blame;

  // A piece of memory between updates.
  struct Watched {
    std::string what;  // "the weights", "exp_avg"
    at::Tensor tensor;
    kernels::MemorySums sums;
  };
  struct Shard {
    std::vector<Watched> watched;  // the master, each state, the working copy
    bool by_blocks = false;  // whether its updates call Before- and AfterBlock
    bool can_be_by_blocks = false;
    std::atomic<int64_t> elements{0};  // that this update has done so
  };

  // UpdateWitness.
  void BeforeBlock(const float* parameter, int64_t elements) override;
  void AfterBlock(const float* parameter, int64_t elements) override;
  bool Knows(const float* parameter) const override;
  // KeptWitness.
  void Take(const void* memory, int64_t bytes) override;
  void Check(void* memory, int64_t bytes) override;
  void Drop(const void* memory) override;

  void TakeAll();
  void MendAll();
  void Verify(size_t shard, Watched* watched);
  void OnProduct(const kernels::ProductFailure& failure);
  void OnWrongMessage(const WrongMessage& wrong);
  void OnChangedWord(size_t shard, const Watched& watched,
                     const kernels::ChangedWord& changed);
  // What a word that changed is of; of one that isn't known, its block.
  std::string PlaceOf(size_t shard, const Watched& watched,
                      const kernels::ChangedWord& changed) const;
  // Adds a failure that isn't mended; what follows of that becomes the end of
  // the sentence. `moves`: whether it was a message, which may have had
  // weights.
  void FailUnmended(Blame blame, std::string text, bool moves = false);
  // The same of memory that an update needs.
  void FailLost(Blame blame, std::string text);
  Blame Own(std::string what) const;
  // Of EndStep, for the step that is under way or comes next.
  absl::Status Tell();
  std::string Summary();
  // The parameter of element `element` of a shard, "" in a gap.
  std::string NameOf(size_t shard, int64_t element) const;
  // What memory belongs to: "layers.3.mlp.up_proj.weight"; "": not known.
  std::string NameOf(const void* memory) const;

  Session& session_;
  kernels::ProductChecker products_;
  std::vector<std::unique_ptr<Shard>> shards_;
  bool taken_ = false;           // whether the watched memory's sums are known
  std::atomic<bool> due_{true};  // whether this step is checked
  size_t updating_ = 0;
  int attempts_ = 0;  // at this step's gradients, besides the first
  std::atomic<Phase> phase_{Phase::kElsewhere};

  std::mutex mutex_;  // for what follows
  std::map<const void*, std::shared_ptr<const kernels::MemorySums>> kept_;
  bool again_ = false;
  bool lost_ = false;

  WitnessFailures failures_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_WITNESS_H_
