// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_STATE_KINDS_H_
#define CAPSTAN_TRAINER_CHECKPOINT_STATE_KINDS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {

// What a checkpoint stores for each trainable parameter: its master, then
// optimizer state, then strategy state. With Strategy::local_steps(), the
// master is the ranks' shared one, and the optimizer's state and a replica of
// the master are each rank's own, or that of the ranks of a replica.
struct StateKind {
  StateShape shape;
  std::vector<at::Tensor> tensors;  // one per shard
  // Each replica is saved whole, under a name of its own, rather than the
  // slices that this rank owns of what all share.
  bool of_replica = false;

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
// A replica's own masters.
inline constexpr char kReplicaKind[] = "replica";

inline bool LocalSteps(const CheckpointParts& parts) {
  return parts.strategy != nullptr && parts.strategy->local_steps();
}

// The ranks that train one replica (Strategy::replica_group).
inline int RanksOfReplica(const CheckpointParts& parts) {
  ProcessGroup* const ranks =
      LocalSteps(parts) ? parts.strategy->replica_group() : nullptr;
  return ranks == nullptr ? 1 : ranks->size();
}
// The number of replicas, and which one this rank trains.
inline int ReplicasOf(const CheckpointParts& parts) {
  return parts.group->size() / RanksOfReplica(parts);
}
inline int ReplicaOf(const CheckpointParts& parts) {
  return parts.group->rank() / RanksOfReplica(parts);
}

// The prefix of what rank `rank` alone has, or replica `rank`: "rank.3.".
inline std::string RankPrefix(int rank) {
  return absl::StrCat("rank.", rank, ".");
}
// The prefix of a kind of `parts` that may be a replica's own.
inline std::string OwnPrefix(const CheckpointParts& parts) {
  return LocalSteps(parts) ? RankPrefix(ReplicaOf(parts)) : "";
}
// A kind's name without such a prefix.
std::string WithoutRank(const std::string& name);

// The name in files of what rank `rank` saves of a plugin's state.
inline std::string PluginKindOf(const PluginState& plugin, int rank) {
  return (plugin.of_rank ? RankPrefix(rank) : "") + plugin.kind;
}

inline StateKind MasterKind(const CheckpointParts& parts) {
  StateKind kind;
  kind.shape.spec.name = kMasterKind;
  const bool shared = LocalSteps(parts);
  for (size_t s = 0; s < parts.shards.size(); ++s) {
    kind.tensors.push_back(
        shared ? parts.strategy->SharedMaster(static_cast<int>(s))
               : parts.shards[s].master);
  }
  return kind;
}

// With local_steps(): this replica's masters, under a replica's prefix.
inline StateKind ReplicaKind(const CheckpointParts& parts,
                             const std::string& prefix) {
  StateKind kind;
  kind.shape.spec.name = prefix + kReplicaKind;
  kind.of_replica = true;
  for (const OptimizerShard& shard : parts.shards) {
    kind.tensors.push_back(shard.master);
  }
  return kind;
}

// Their names have `prefix`, which is a replica's or "".
inline std::vector<StateKind> OptimizerKinds(const CheckpointParts& parts,
                                             const std::string& prefix) {
  std::vector<StateKind> kinds;
  for (size_t k = 0; k < parts.state_shapes.size(); ++k) {
    StateKind kind = {parts.state_shapes[k], {}, !prefix.empty()};
    kind.shape.spec.name = prefix + kind.shape.spec.name;
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
    kinds.push_back({{{kStrategyKind + name}, {}}, {}, false});
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
  for (StateKind& kind : OptimizerKinds(parts, OwnPrefix(parts))) {
    kinds.push_back(std::move(kind));
  }
  for (StateKind& kind : StrategyKinds(parts)) {
    kinds.push_back(std::move(kind));
  }
  if (LocalSteps(parts)) {
    kinds.push_back(ReplicaKind(parts, OwnPrefix(parts)));
  }
  return kinds;
}

// A slice for all of each shard.
std::vector<OwnedSlice> WholeShards(absl::Span<const OptimizerShard> shards);
// What this rank saves of its replica.
std::vector<OwnedSlice> ReplicaSlices(const CheckpointParts& parts);
// The slices of a kind that this rank saves.
std::vector<OwnedSlice> SlicesOf(const StateKind& kind,
                                 const CheckpointParts& parts);

// A checkpoint tensor with a NaN or an infinity or, in a master, a number whose
// square overflows float32: no model computes with such weights.
struct NonFiniteTensor {
  int parameter = 0;  // index into CheckpointParts::specs
  int kind = 0;       // index into AllKinds: 0 is the master
};

// Whether kind number `kind` is the strategy's.
inline bool IsStrategyKind(int64_t kind, const CheckpointParts& parts) {
  const auto optimizers = static_cast<int64_t>(parts.state_shapes.size());
  return kind > optimizers && parts.strategy != nullptr &&
         kind <= optimizers +
                     static_cast<int64_t>(parts.strategy->state_names().size());
}

// Returns the first one, by parameter and kind, in what this rank saves; one of
// the strategy's own state only if there is no other. Passes over the data
// once; on a GPU it waits for the device.
absl::optional<NonFiniteTensor> FindNonFinite(const CheckpointParts& parts);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_STATE_KINDS_H_
