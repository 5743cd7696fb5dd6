// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_STATE_KINDS_H_
#define CAPSTAN_TRAINER_CHECKPOINT_STATE_KINDS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {

// What a checkpoint stores for each trainable parameter: its master, then
// optimizer state, then strategy state.
struct StateKind {
  StateShape shape;
  std::vector<at::Tensor> tensors;  // one per shard

  // The kind's name in files.
  const std::string& name() const { return shape.spec.name; }
};

inline ManifestState ManifestStateOf(const StateKind& kind,
                                     const CheckpointParts& parts) {
  const OptimizerStateSpec& spec = kind.shape.spec;
  const std::vector<int64_t>& numels = kind.shape.numels;
  ManifestState state = {spec.name, "", spec.block, spec.per_parameter};
  for (size_t i = 0; i < numels.size(); ++i) {
    if (numels[i] < 0) continue;
    state.numels[(*parts.specs)[i].name] = numels[i];
  }
  if (spec.dtype != c10::ScalarType::Undefined) {
    state.dtype = c10::toString(spec.dtype);
  }
  return state;
}

// Prefix of the strategy's own kinds.
inline constexpr char kStrategyKind[] = "strategy.";

inline StateKind MasterKind(const CheckpointParts& parts) {
  StateKind kind;
  kind.shape.spec.name = kMasterKind;
  for (const OptimizerShard& shard : parts.shards) {
    kind.tensors.push_back(shard.master);
  }
  return kind;
}

inline std::vector<StateKind> OptimizerKinds(const CheckpointParts& parts) {
  std::vector<StateKind> kinds;
  for (size_t k = 0; k < parts.state_shapes.size(); ++k) {
    StateKind kind = {parts.state_shapes[k], {}};
    for (const std::vector<at::Tensor>& state : *parts.state) {
      kind.tensors.push_back(state[k]);
    }
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

inline std::vector<StateKind> StrategyKinds(const CheckpointParts& parts) {
  std::vector<StateKind> kinds;
  if (parts.strategy == nullptr) return kinds;
  for (const std::string& name : parts.strategy->state_names()) {
    kinds.push_back({{{kStrategyKind + name}, {}}, {}});
  }
  if (kinds.empty()) return kinds;
  for (size_t s = 0; s < parts.shards.size(); ++s) {
    const std::vector<at::Tensor> state =
        parts.strategy->ShardState(static_cast<int>(s));
    for (size_t k = 0; k < kinds.size(); ++k) {
      kinds[k].tensors.push_back(state[k]);
    }
  }
  return kinds;
}

// All kinds; the optimizer's begin at index 1.
inline std::vector<StateKind> AllKinds(const CheckpointParts& parts) {
  std::vector<StateKind> kinds = {MasterKind(parts)};
  for (StateKind& kind : OptimizerKinds(parts)) {
    kinds.push_back(std::move(kind));
  }
  for (StateKind& kind : StrategyKinds(parts)) {
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

// A checkpoint tensor with a NaN or an infinity or, in a master, a number whose
// square overflows float32: no model computes with such weights.
struct NonFiniteTensor {
  int parameter = 0;  // index into CheckpointParts::specs
  int kind = 0;       // index into AllKinds: 0 is the master
};

// Whether kind number `kind` is the strategy's.
inline bool IsStrategyKind(int64_t kind, const CheckpointParts& parts) {
  return kind > static_cast<int64_t>(parts.state_shapes.size());
}

// Returns the first one, by parameter and kind, in what this rank saves; one of
// the strategy's own state only if there is no other. Passes over the data
// once; on a GPU it waits for the device.
absl::optional<NonFiniteTensor> FindNonFinite(const CheckpointParts& parts);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_STATE_KINDS_H_
