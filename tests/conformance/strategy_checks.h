// SPDX-License-Identifier: Apache-2.0
//
// What a rank can see for itself of a strategy's promises, and what it tells
// the test for the rest.
#ifndef CAPSTAN_TESTS_CONFORMANCE_STRATEGY_CHECKS_H_
#define CAPSTAN_TESTS_CONFORMANCE_STRATEGY_CHECKS_H_

#include <string>
#include <vector>

#include "tests/conformance/ranks.h"
#include "tests/conformance/toy_trainer.h"

namespace capstan {
namespace conformance {

// The tests that problems go to.
constexpr char kBindingTopic[] = "Binding";
constexpr char kShardsTopic[] = "Shards";
constexpr char kFullParametersTopic[] = "FullParameters";

// Masters, gradients, working copies and momenta as they are now, bit by bit.
class ShardSnapshot {
 public:
  explicit ShardSnapshot(ToyTrainer& trainer);
  // What differs from the masters, working copies and momenta of now; "" if
  // nothing does.
  std::string Difference(ToyTrainer& trainer) const;
  // What isn't where it was.
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

// Whether the model got tensors as its specs and the precision say.
void CheckBinding(ToyTrainer& trainer, RankReport* report);

// Layout, dtypes, padding, working copies. Gradients' padding too if
// `gradients`, which are there after FinishBackward.
void CheckShards(ToyTrainer& trainer, bool gradients, RankReport* report);

// Adds NAME/value/PARAMETER and NAME/momentum/PARAMETER, a record {begin,
// values..} for each range of this rank's owned slices.
void ReportOwned(const std::string& name, ToyTrainer& trainer,
                 RankReport* report);

// Calls ForEachFullParameter, and adds NAME/full/PARAMETER on rank 0.
// Collective.
absl::Status ReportFull(const std::string& name, ToyTrainer& trainer, int rank,
                        RankReport* report);

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_STRATEGY_CHECKS_H_
