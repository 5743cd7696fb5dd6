// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/model.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/plugin_state.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/snapshot.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/optimizer/optimizer_state.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {
namespace {

absl::Status Save(SaveRequest request, const CheckpointParts& parts) {
  ProcessGroup& group = *parts.group;
  const bool first = group.rank() == 0;
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  CAPSTAN_RETURN_IF_ERROR(BeginTogether(&request, BytesOf(pieces), group));
  const std::string temporary = request.temporary();

  absl::Status status =
      WriteRank(temporary, group.rank(), group.size(), pieces);
  status = Agree(group, status, [&](int rank) {
    return absl::StrCat("write ", temporary, "/",
                        RankFileName(rank, group.size()));
  });
  if (status.ok()) {
    if (first) {
      status = CommitSave(request, ManifestFrame(request.train_state, parts));
    }
    status = Agree(group, status, [&](int) {
      return absl::StrCat("complete ", request.folder());
    });
  }
  if (first && !status.ok()) GiveUpSave(request);
  return status;
}

// Elements [begin, begin + length) of a parameter's `kind`, which are loaded
// into `tensor` (1-D) from `offset` on.
struct Target {
  std::string kind;
  std::string parameter;
  int64_t begin = 0;
  int64_t length = 0;
  at::Tensor tensor;
  int64_t offset = 0;
};

// One read from a file.
struct Copy {
  const Target* target = nullptr;
  RangeIndex::Piece piece;
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckParameters(const std::string& folder,
                             const Manifest& manifest,
                             const std::vector<ParameterSpec>& specs) {
  const auto differs = [&](const std::string& how) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": the checkpoint was made by another model: ", how,
        "; resume with the model that it was saved with"));
  };
  std::map<std::string, const ManifestParameter*> stored;
  for (const ManifestParameter& p : manifest.parameters) stored[p.name] = &p;
  for (const ParameterSpec& spec : specs) {
    const auto found = stored.find(spec.name);
    if (found == stored.end()) {
      return differs(absl::StrCat("it has no parameter '", spec.name, "'"));
    }
    if (found->second->shape != spec.shape) {
      return differs(absl::StrCat("its '", spec.name, "' has shape ",
                                  ShapeText(found->second->shape),
                                  ", this run's has ", ShapeText(spec.shape)));
    }
    if (found->second->trainable != spec.trainable) {
      const char* const how[] = {"frozen", "trained"};
      return differs(absl::StrCat("its '", spec.name, "' is ",
                                  how[found->second->trainable],
                                  ", this run's is ", how[spec.trainable]));
    }
    stored.erase(found);
  }
  // In the checkpoint's order, so that the first difference is reported.
  for (const ManifestParameter& p : manifest.parameters) {
    if (stored.count(p.name) > 0) {
      return differs(
          absl::StrCat("this run's has no parameter '", p.name, "'"));
    }
  }
  return absl::OkStatus();
}

// Names, with differences from the masters: "exp_avg, scale (Float) (blocks of
// 256)".
std::string StateText(const std::vector<ManifestState>& state) {
  if (state.empty()) return "none";
  return absl::StrJoin(
      state, ", ", [](std::string* out, const ManifestState& kind) {
        absl::StrAppend(out, kind.name);
        if (!kind.dtype.empty()) absl::StrAppend(out, " (", kind.dtype, ")");
        if (kind.per_parameter > 0) {
          absl::StrAppend(out, " (", kind.per_parameter, " a parameter)");
        } else if (kind.block > 1) {
          absl::StrAppend(out, " (blocks of ", kind.block, ")");
        }
      });
}

bool HasKind(const Manifest& manifest, const std::string& name) {
  return std::any_of(
      manifest.state.begin(), manifest.state.end(),
      [&](const ManifestState& kind) { return kind.name == name; });
}

// The replicas with state of their own; 0: there are none.
int ReplicasIn(const Manifest& manifest) {
  int replicas = 0;
  while (HasKind(manifest, RankPrefix(replicas) + kReplicaKind)) ++replicas;
  return replicas;
}

// The prefix of the optimizer's state that this rank loads: of another number
// of replicas with state of their own, that of one of them.
std::string StoredPrefix(const Manifest& manifest,
                         const CheckpointParts& parts) {
  const int stored = ReplicasIn(manifest);
  if (stored == 0) return "";
  return RankPrefix(LocalSteps(parts) ? ReplicaOf(parts) % stored : 0);
}

// Compares the optimizer's state, whose names in the checkpoint have `prefix`;
// the strategy may differ.
absl::Status CheckState(const std::string& folder, const std::string& prefix,
                        std::vector<ManifestState> stored,
                        std::vector<ManifestState> wanted) {
  const std::string replica = prefix + kReplicaKind;
  stored.erase(std::remove_if(stored.begin(), stored.end(),
                              [&](const ManifestState& kind) {
                                return !absl::StartsWith(kind.name, prefix) ||
                                       kind.name == replica ||
                                       absl::StartsWith(kind.name,
                                                        kStrategyKind);
                              }),
               stored.end());
  for (auto* state : {&stored, &wanted}) {
    for (ManifestState& kind : *state) kind.name.erase(0, prefix.size());
  }
  const std::string was = StateText(stored);
  const std::string is = StateText(wanted);
  for (auto* state : {&stored, &wanted}) {
    std::sort(state->begin(), state->end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
  }
  if (stored == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, ": the checkpoint was saved with optimizer state ",
                   was, "; this run's optimizer has ", is,
                   ": resume with the optimizer that it was saved with"));
}

// Maps each target to stored pieces, grouped by file.
absl::StatusOr<std::map<const ManifestFile*, std::vector<Copy>>> FindCopies(
    const StoredState& from, const std::vector<Target>& targets) {
  const RangeIndex index(from.manifest);
  std::map<const ManifestFile*, std::vector<Copy>> copies;
  for (const Target& target : targets) {
    const auto cover =
        index.Cover(target.kind, target.parameter, target.begin, target.length);
    if (!cover.ok()) {
      return DamagedError(absl::StrCat(from.name, "/", kManifestFile),
                          cover.status().message());
    }
    for (const RangeIndex::Piece& piece : *cover) {
      copies[piece.file].push_back({&target, piece});
    }
  }
  return copies;
}

// Checks that everything is present, then reads.
absl::Status Fill(const StoredState& from, const std::vector<Target>& targets) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto copies, FindCopies(from, targets));
  std::map<const ManifestFile*, std::unique_ptr<StateFile>> opened;
  for (const auto& [file, file_copies] : copies) {
    CAPSTAN_ASSIGN_OR_RETURN(opened[file], from.open(*file));
    for (const Copy& copy : file_copies) {
      CAPSTAN_RETURN_IF_ERROR(opened[file]->Check(*copy.piece.range));
    }
  }
  for (const auto& [file, file_copies] : copies) {
    for (const auto& [target, piece] : file_copies) {
      const at::Tensor out = target->tensor.narrow(
          0, target->offset + piece.begin - target->begin, piece.length);
      CAPSTAN_RETURN_IF_ERROR(
          opened[file]->Read(*piece.range, piece.begin, out));
    }
    opened[file]->Close();
  }
  return absl::OkStatus();
}

std::vector<Target> TargetsOf(const CheckpointParts& parts,
                              const std::vector<StateKind>& kinds) {
  std::vector<Target> targets;
  for (size_t s = 0; s < parts.shards.size(); ++s) {
    const std::vector<ParameterRange>& ranges = parts.shards[s].ranges;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const ParameterRange& range = ranges[i];
      for (const StateKind& kind : kinds) {
        const StatePart part =
            StatePartOf(kind.shape, ranges, static_cast<int>(i), range.offset,
                        range.offset + range.length);
        if (part.length == 0) continue;
        targets.push_back({kind.name(), (*parts.specs)[range.parameter].name,
                           part.begin, part.length, kind.tensors[s],
                           part.offset});
      }
    }
  }
  return targets;
}

// A plugin's state that is read.
struct PluginTarget {
  const PluginState* plugin = nullptr;
  std::string file;  // "": the checkpoint has none
  at::Tensor bytes;
};

std::string SavedBytes(const PluginTarget& target) {
  return std::string(static_cast<const char*>(target.bytes.const_data_ptr()),
                     target.bytes.nbytes());
}

// Finds what rank `rank` has saved of it. Adds what is to be read to *targets.
PluginTarget PluginTargetOf(const StoredState& from, const PluginState& plugin,
                            int rank, std::vector<Target>* targets) {
  PluginTarget target = {&plugin, "", at::empty({0}, at::kByte)};
  const std::string kind = PluginKindOf(plugin, rank);
  for (const ManifestFile& file : from.manifest.files) {
    for (const ManifestRange& range : file.ranges) {
      if (range.kind != kind || range.parameter != plugin.plugin) continue;
      target.file = absl::StrCat(from.name, "/", file.name);
      target.bytes = at::empty({range.length}, at::kByte);
      targets->push_back(
          {kind, range.parameter, 0, range.length, target.bytes, 0});
    }
  }
  return target;
}

// Finds what the checkpoint has of the plugins' states; `own` says whether that
// of each rank is wanted, too. Adds what is to be read to *targets.
std::vector<PluginTarget> PluginTargets(const StoredState& from,
                                        const CheckpointParts& parts, bool own,
                                        std::vector<Target>* targets) {
  const Manifest& manifest = from.manifest;
  const int rank = parts.group->rank() % std::max(1, manifest.world_size);
  std::vector<PluginTarget> found;
  for (const PluginState& plugin : parts.plugins) {
    if (plugin.of_rank && !own) continue;
    found.push_back(PluginTargetOf(from, plugin, rank, targets));
  }
  return found;
}

// Returns the strategy's kinds if the checkpoint has all of them, else none.
std::vector<StateKind> StoredStrategyKinds(const CheckpointParts& parts,
                                           const Manifest& manifest) {
  std::vector<StateKind> kinds = StrategyKinds(parts);
  const bool stored = std::all_of(
      kinds.begin(), kinds.end(),
      [&](const StateKind& kind) { return HasKind(manifest, kind.name()); });
  return stored ? kinds : std::vector<StateKind>();
}

absl::StatusOr<StoredState> StoredIn(const std::string& folder) {
  StoredState stored;
  stored.name = folder;
  CAPSTAN_ASSIGN_OR_RETURN(stored.manifest, ReadManifest(folder));
  stored.open = [folder](const ManifestFile& file) {
    return StateFile::Open(folder, file);
  };
  return stored;
}

absl::Status LoadTogether(const std::string& folder,
                          const CheckpointParts& parts, TrainState* state) {
  return CatchAll([&] {
    return Agree(*parts.group, CatchAll([&]() -> absl::Status {
      CAPSTAN_ASSIGN_OR_RETURN(const StoredState stored, StoredIn(folder));
      return LoadState(stored, parts, state);
    }),
                 [&](int) { return absl::StrCat("read ", folder); });
  });
}

// How a rank's load of a checkpoint ended.
enum Fared { kRead, kDamaged, kFailed };

Fared FaredOf(const absl::Status& status) {
  if (status.ok()) return kRead;
  return absl::IsDataLoss(status) ? kDamaged : kFailed;
}

// Returns the first rank that fared so, or the number of ranks.
int FirstThat(Fared fared, const std::vector<double>& all) {
  return static_cast<int>(std::find(all.begin(), all.end(), fared) -
                          all.begin());
}

// Loads the checkpoint that rank 0 sees. *touched says whether an earlier,
// failed load may have changed the strategy's state; sets it if this one may.
absl::Status LoadSeen(const std::string& folder, const CheckpointParts& parts,
                      bool* touched, Resumed* resumed) {
  const absl::StatusOr<StoredState> stored = StoredIn(folder);
  if (absl::IsNotFound(stored.status()) && parts.group->rank() != 0) {
    return Annotate(stored.status(),
                    "output_dir isn't the folder that rank 0 has, which sees "
                    "a checkpoint there: all hosts must share it");
  }
  CAPSTAN_RETURN_IF_ERROR(stored.status());
  const bool has = !StoredStrategyKinds(parts, stored->manifest).empty();
  if (*touched && !has) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " has no state of this strategy"));
  }
  *touched = has;
  resumed->replicas = ReplicasIn(stored->manifest);
  return LoadState(*stored, parts, &resumed->state);
}

absl::Status LoadNewest(const std::string& output_dir,
                        const CheckpointParts& parts, Resumed* resumed) {
  ProcessGroup& group = *parts.group;
  const bool first = group.rank() == 0;
  std::vector<StoredCheckpoint> all;
  if (first) all = WholeCheckpoints(output_dir);
  all.resize(static_cast<size_t>(
      FromAllRanks(group, static_cast<double>(all.size()))[0]));
  absl::Status newest;  // of loading the newest, on this rank
  bool touched = false;
  for (const StoredCheckpoint& checkpoint : all) {
    const std::string folder = FromAllRanks(group, checkpoint.path)[0];
    const absl::Status mine = CatchAll([&] {
      return WithRetries(
          [&] { return LoadSeen(folder, parts, &touched, resumed); });
    });
    const std::vector<double> fared = FromAllRanks(group, FaredOf(mine));
    const int failed = FirstThat(kFailed, fared);
    const int damaged = FirstThat(kDamaged, fared);
    if (failed == group.size() && damaged == group.size()) {
      resumed->folder = folder;
      return absl::OkStatus();
    }
    if (newest.ok()) {
      newest =
          !mine.ok()
              ? mine
              : LostPeerError(absl::StrCat("rank ", std::min(failed, damaged),
                                           " could not read ", folder));
    }
    if (failed < group.size()) return newest;
    std::string how = FromAllRanks(group, std::string(mine.message()))[damaged];
    how = how.substr(0, how.find(kWhatToDo));
    resumed->damaged.emplace_back(checkpoint.step, how);
  }
  return newest;
}

}  // namespace

// Every rank checks model and optimizer before it reads.
absl::Status LoadState(const StoredState& from, const CheckpointParts& parts,
                       TrainState* state) {
  const at::NoGradGuard no_grad;
  CAPSTAN_RETURN_IF_ERROR(
      CheckParameters(from.name, from.manifest, *parts.specs));
  std::vector<StateKind> kinds = {MasterKind(parts)};
  // Otherwise the replica begins with the shared model.
  bool has_replica = false;
  if (state != nullptr) {
    const std::string prefix = StoredPrefix(from.manifest, parts);
    std::vector<ManifestState> wanted;
    for (StateKind& kind : OptimizerKinds(parts, prefix)) {
      wanted.push_back(ManifestStateOf(kind, parts));
      kinds.push_back(std::move(kind));
    }
    CAPSTAN_RETURN_IF_ERROR(
        CheckState(from.name, prefix, from.manifest.state, wanted));
    has_replica = LocalSteps(parts) && !prefix.empty() &&
                  ReplicasIn(from.manifest) == ReplicasOf(parts);
    if (has_replica) kinds.push_back(ReplicaKind(parts, prefix));
    for (StateKind& kind : StoredStrategyKinds(parts, from.manifest)) {
      kinds.push_back(std::move(kind));
    }
  }
  std::vector<Target> targets = TargetsOf(parts, kinds);
  const std::vector<PluginTarget> plugins =
      PluginTargets(from, parts, /*own=*/state != nullptr, &targets);
  CAPSTAN_RETURN_IF_ERROR(Fill(from, targets));
  for (const PluginTarget& plugin : plugins) {
    plugin.plugin->load(SavedBytes(plugin), plugin.file);
  }
  for (size_t s = 0; s < parts.shards.size(); ++s) {
    OptimizerShard& shard = parts.shards[s];
    if (LocalSteps(parts) && !has_replica)
      shard.master.copy_(kinds[0].tensors[s]);
    if (shard.working.defined()) shard.working.copy_(shard.master);
  }
  if (state != nullptr) *state = from.manifest.train_state;
  return absl::OkStatus();
}

absl::Status BeginTogether(SaveRequest* request, int64_t bytes,
                           ProcessGroup& group) {
  // 48 bits, which a double holds.
  uint64_t attempt = 0;
  const bool first = group.rank() == 0;
  if (first && getrandom(&attempt, 6, 0) != 6) attempt = getpid();
  double all[] = {static_cast<double>(bytes), static_cast<double>(attempt)};
  group.AllReduceHost(absl::MakeSpan(all));
  request->attempt = static_cast<uint64_t>(all[1]);
  absl::Status status;
  if (first) status = BeginSave(*request, static_cast<int64_t>(all[0]));
  return Agree(group, status, [&](int) {
    return absl::StrCat("make ", request->temporary());
  });
}

absl::StatusOr<TrainState> CheckpointState(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  return manifest.train_state;
}

absl::StatusOr<std::string> CheckpointConfig(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  return std::move(manifest.config_text);
}

absl::StatusOr<RunIdentity> CheckpointIdentity(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  return std::move(manifest.identity);
}

absl::Status SaveCheckpoint(const SaveRequest& request,
                            const CheckpointParts& parts) {
  return CatchAll([&] { return Save(request, parts); });
}

absl::StatusOr<TrainState> LoadCheckpoint(const std::string& folder,
                                          const CheckpointParts& parts) {
  TrainState state;
  CAPSTAN_RETURN_IF_ERROR(LoadTogether(folder, parts, &state));
  return state;
}

absl::StatusOr<Resumed> LoadNewestCheckpoint(const std::string& output_dir,
                                             const CheckpointParts& parts) {
  Resumed resumed;
  CAPSTAN_RETURN_IF_ERROR(
      CatchAll([&] { return LoadNewest(output_dir, parts, &resumed); }));
  return resumed;
}

absl::Status LoadCheckpointWeights(const std::string& folder,
                                   const CheckpointParts& parts) {
  return LoadTogether(folder, parts, /*state=*/nullptr);
}

namespace {

absl::StatusOr<uint32_t> ChecksumOf(const Model& model, bool trainable,
                                    uint64_t seed) {
  // A few values of each suffice: another model differs everywhere.
  constexpr int64_t kValues = 64;
  std::string bytes;
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].trainable != trainable) continue;
    const int index = static_cast<int>(i);
    if (const int64_t packed = model.PackedBytes(index); packed > 0) {
      // Bytes, which are there without a pass over the others; their number
      // tells formats apart that begin alike.
      bytes.append(reinterpret_cast<const char*>(&packed), sizeof(packed));
      std::vector<uint8_t> some(std::min(kValues, packed));
      CAPSTAN_RETURN_IF_ERROR(model.PackedValue(
          index, 0, static_cast<int64_t>(some.size()), some.data()));
      bytes.append(some.begin(), some.end());
      continue;
    }
    const int64_t count = std::min(kValues, specs[i].numel());
    std::vector<float> values(count);
    for (const int64_t begin : {int64_t{0}, (specs[i].numel() - count) / 2}) {
      CAPSTAN_RETURN_IF_ERROR(
          model.InitialValue(index, seed, begin, count, values.data()));
      bytes.append(reinterpret_cast<const char*>(values.data()),
                   values.size() * sizeof(float));
    }
  }
  return bytes.empty() ? 0 : Crc32c(bytes);
}

}  // namespace

absl::StatusOr<uint32_t> FrozenChecksum(const Model& model, uint64_t seed) {
  return ChecksumOf(model, /*trainable=*/false, seed);
}

absl::StatusOr<uint32_t> TrainedChecksum(const Model& model, uint64_t seed) {
  return ChecksumOf(model, /*trainable=*/true, seed);
}

absl::StatusOr<std::vector<at::Tensor>> CheckpointWeights(
    const std::string& folder, const std::vector<ParameterSpec>& specs,
    const InitialValues& initial) {
  CAPSTAN_ASSIGN_OR_RETURN(const StoredState stored, StoredIn(folder));
  CAPSTAN_RETURN_IF_ERROR(CheckParameters(folder, stored.manifest, specs));
  std::vector<at::Tensor> weights;
  std::vector<Target> targets;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    for (size_t i = 0; i < specs.size(); ++i) {
      weights.push_back(at::empty(specs[i].shape, at::kFloat));
      if (specs[i].trainable) {
        targets.push_back({kMasterKind, specs[i].name, 0, specs[i].numel(),
                           weights.back().view({-1}), 0});
      } else if (initial == nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat(folder, ": '", specs[i].name,
                         "' is frozen, and so isn't in the checkpoint"));
      } else {
        CAPSTAN_RETURN_IF_ERROR(
            initial(static_cast<int>(i), stored.manifest.train_state.seed,
                    weights.back().mutable_data_ptr<float>()));
      }
    }
    return Fill(stored, targets);
  }));
  return weights;
}

absl::StatusOr<std::string> CheckpointPluginState(const std::string& folder,
                                                  const PluginState& plugin,
                                                  int rank) {
  CAPSTAN_ASSIGN_OR_RETURN(const StoredState stored, StoredIn(folder));
  std::vector<Target> targets;
  const PluginTarget found = PluginTargetOf(stored, plugin, rank, &targets);
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] { return Fill(stored, targets); }));
  return SavedBytes(found);
}

}  // namespace capstan
