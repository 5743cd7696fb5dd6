// SPDX-License-Identifier: Apache-2.0
//
// What a rank can check of a strategy's contract by itself, and what it reports
// to the test for the rest.
#ifndef CAPSTAN_TESTS_CONFORMANCE_STRATEGY_CHECKS_H_
#define CAPSTAN_TESTS_CONFORMANCE_STRATEGY_CHECKS_H_

#include <string>
#include <vector>

#include "tests/conformance/ranks.h"
#include "tests/conformance/toy_trainer.h"

namespace capstan {
namespace conformance {

// The topics of problems, one per test.
constexpr char kBindingTopic[] = "Binding";
constexpr char kShardsTopic[] = "Shards";
constexpr char kFullParametersTopic[] = "FullParameters";
constexpr char kSharedTopic[] = "Shared";

// A bitwise copy of masters, gradients, working copies and momenta.
class ShardSnapshot {
 public:
  explicit ShardSnapshot(ToyTrainer& trainer);
  // Which of the current masters, working copies and momenta differ; "" if
  // none.
  std::string Difference(ToyTrainer& trainer) const;
  // Which tensors have moved.
  std::string Moved(ToyTrainer& trainer) const;
  bool finite() const;

 private:
  struct Shard {
    OptimizerShard tensors;  // the originals
    at::Tensor master;
    at::Tensor working;  // may be undefined
    at::Tensor momentum;
  };
  std::vector<Shard> shards_;
};

// Checks that the bound tensors match the specs and the precision.
void CheckBinding(ToyTrainer& trainer, RankReport* report);

// Checks layout, dtypes, padding and working copies; if `gradients` (after
// FinishBackward), also the gradients' padding.
void CheckShards(ToyTrainer& trainer, bool gradients, RankReport* report);

// Adds NAME/value/PARAMETER and NAME/momentum/PARAMETER: a record {begin,
// values..} for each range of this rank's owned slices.
void ReportOwned(const std::string& name, ToyTrainer& trainer,
                 RankReport* report);

// Calls ForEachFullParameter, and adds NAME/full/PARAMETER on rank 0.
// Collective.
absl::Status ReportFull(const std::string& name, ToyTrainer& trainer, int rank,
                        RankReport* report);

// Whether all ranks pass the same number, or all that are `period` ranks apart.
// Collective.
bool SameOnAllRanks(double number, ProcessGroup* group, int period = 1);

// Copies of the shared model, a tensor a shard (Strategy::SharedMaster).
std::vector<at::Tensor> SharedMasters(ToyTrainer& trainer);
bool AllSame(const std::vector<at::Tensor>& a,
             const std::vector<at::Tensor>& b);

// Checks, for a strategy with local steps, that the shared model is the same
// bits on all ranks. Collective.
void CheckShared(ToyTrainer& trainer, ProcessGroup* group, RankReport* report);
// That each rank has gradients of its own, after a step. Collective.
void CheckOwnGradients(ToyTrainer& trainer, ProcessGroup* group,
                       RankReport* report);
// Whether the values that ForEachFullParameter passes on rank 0 are those of
// the shared model; true on other ranks. Collective.
bool FullParametersAreShared(ToyTrainer& trainer);

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_STRATEGY_CHECKS_H_
