// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <stdio.h>

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
#include "base/status.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/process_group/agree.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {
namespace {

std::string Root(const std::string& output_dir) {
  return output_dir + "/checkpoints";
}

std::vector<std::string> ListNames(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

// The step in "step-NNNNNNNN", or -1.
int64_t StepOf(absl::string_view name) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, "step-") || name.size() < 8 ||
      name.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(name, &step)) {
    return -1;
  }
  return step;
}

// Complete checkpoints by step. If a run was killed while replacing one with
// another of the same step, it may still have its hidden name.
std::map<int64_t, std::string> WholeCheckpoints(const std::string& output_dir) {
  std::map<int64_t, std::string> found;
  for (const std::string& name : ListNames(Root(output_dir))) {
    absl::string_view plain = name;
    const bool old =
        absl::ConsumePrefix(&plain, ".") && absl::ConsumeSuffix(&plain, ".old");
    const int64_t step = StepOf(old ? plain : name);
    const std::string path = absl::StrCat(Root(output_dir), "/", name);
    if (step < 0 || !IsCheckpoint(path)) continue;
    if (old) {
      found.emplace(step, path);
    } else {
      found[step] = path;
    }
  }
  return found;
}

void RemoveQuietly(const std::string& path) {
  const absl::Status status = RemoveTree(path);
  if (!status.ok()) {
    LOG(WARNING) << "cannot remove what an older checkpoint has left: "
                 << status.message();
  }
}

std::string RankFileName(int rank, int world_size) {
  return absl::StrFormat("state-%05d-of-%05d.safetensors", rank, world_size);
}

// A rank's part of the manifest, for rank 0.
std::string RankNotePath(const std::string& folder, int rank) {
  return absl::StrFormat("%s/rank-%05d.json", folder, rank);
}

std::vector<StatePiece> OwnedPieces(const CheckpointParts& parts) {
  const std::vector<StateKind> kinds = AllKinds(parts);
  std::vector<StatePiece> pieces;
  for (const OwnedSlice& slice : parts.owned) {
    const std::vector<ParameterRange>& ranges =
        parts.shards[slice.shard].ranges;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const ParameterRange& range = ranges[i];
      const int64_t low = std::max(slice.begin, range.offset);
      const int64_t high = std::min(slice.end, range.offset + range.length);
      if (low >= high) continue;
      const bool first = range.begin == 0 && low == range.offset;
      for (const StateKind& kind : kinds) {
        // The owner of a parameter's first element writes per-parameter state.
        if (kind.spec.per_parameter > 0 && !first) continue;
        const StatePart part =
            StatePartOf(kind.spec, range, static_cast<int>(i), low, high);
        pieces.push_back(
            {{kind.spec.name,
              (*parts.specs)[range.parameter].name,
              part.begin,
              part.length,
              {}},
             kind.tensors[slice.shard].narrow(0, part.offset, part.length)});
      }
    }
  }
  return pieces;
}

// Writes what this rank owns, and its note for rank 0.
absl::Status WriteRankFile(const std::string& folder,
                           const CheckpointParts& parts) {
  const int rank = parts.group->rank();
  CAPSTAN_ASSIGN_OR_RETURN(
      const ManifestFile file,
      WriteStateFile(folder, RankFileName(rank, parts.group->size()),
                     OwnedPieces(parts)));
  return WriteWholeFile(RankNotePath(folder, rank), ManifestFileToJson(file));
}

// Builds the manifest from all ranks' notes.
absl::StatusOr<Manifest> MergeNotes(const std::string& folder,
                                    const TrainState& train_state,
                                    const CheckpointParts& parts) {
  Manifest manifest;
  manifest.train_state = train_state;
  manifest.world_size = parts.group->size();
  manifest.config_text = parts.config_text;
  for (const StateKind& kind : AllKinds(parts)) {
    if (kind.spec.name == kMasterKind) continue;
    manifest.state.push_back(ManifestStateOf(kind.spec));
  }
  for (const ParameterSpec& spec : *parts.specs) {
    manifest.parameters.push_back({spec.name, spec.shape, spec.trainable});
  }
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    absl::StatusOr<ManifestFile> file =
        ReadManifestFile(RankNotePath(folder, rank));
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(absl::StrCat(
          "rank ", rank, "'s part isn't in ", folder,
          ": output_dir must be on a file system that all ranks share"));
    }
    CAPSTAN_RETURN_IF_ERROR(file.status());
    manifest.files.push_back(*std::move(file));
  }
  // Catches strategies that omit elements.
  const absl::Status status = CheckManifest(manifest);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("the strategy doesn't give each element to one rank to "
                     "save: ",
                     status.message()));
  }
  return manifest;
}

// Called on rank 0 after all have written: publishes the checkpoint.
absl::Status Commit(const std::string& temporary, const std::string& folder,
                    const TrainState& train_state,
                    const CheckpointParts& parts) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest,
                           MergeNotes(temporary, train_state, parts));
  for (int rank = 0; rank < parts.group->size(); ++rank) {
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(RankNotePath(temporary, rank)));
  }
  // Files' names must be on disk before the manifest that refers to them.
  CAPSTAN_RETURN_IF_ERROR(SyncPath(temporary));
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(
      absl::StrCat(temporary, "/", kManifestFile), ManifestToJson(manifest)));
  CAPSTAN_RETURN_IF_ERROR(SyncPath(temporary));
  return ReplaceFolder(temporary, folder);
}

// Removes all but the newest `keep` checkpoints (none if `keep` <= 0) except
// those of `saved_step` and `best_step`, and leftovers of killed runs. Failures
// are logged and ignored.
void RemoveOldCheckpoints(const std::string& output_dir, int keep,
                          int64_t saved_step, int64_t best_step) {
  const std::string root = Root(output_dir);
  if (keep > 0) {
    std::map<int64_t, std::string> others = WholeCheckpoints(output_dir);
    others.erase(saved_step);
    others.erase(best_step);
    for (; others.size() >= static_cast<size_t>(keep);
         others.erase(others.begin())) {
      // Rename first: a half-removed checkpoint must not look complete.
      const auto& [step, path] = *others.begin();
      const std::string trash =
          HiddenSibling(CheckpointFolder(output_dir, step), "trash");
      RemoveQuietly(trash);
      if (rename(path.c_str(), trash.c_str()) != 0) {
        PLOG(WARNING) << "cannot remove the old checkpoint " << path;
      }
    }
  }
  std::set<std::string> whole;
  for (const auto& [step, path] : WholeCheckpoints(output_dir)) {
    whole.insert(path);
  }
  for (const std::string& name : ListNames(root)) {
    const std::string path = root + "/" + name;
    if (absl::StartsWith(name, ".step-") && whole.count(path) == 0) {
      RemoveQuietly(path);
    }
  }
}

absl::Status Save(const std::string& output_dir, int keep,
                  const TrainState& train_state, const CheckpointParts& parts,
                  int64_t best_step) {
  ProcessGroup& group = *parts.group;
  const bool first = group.rank() == 0;
  const std::string folder = CheckpointFolder(output_dir, train_state.step);
  const std::string temporary = HiddenSibling(folder, "tmp");

  absl::Status status;
  if (first) {
    status = RemoveTree(temporary);  // left by a killed run
    status.Update(MakeFolder(temporary));
  }
  CAPSTAN_RETURN_IF_ERROR(Agree(
      group, status, [&](int) { return absl::StrCat("make ", temporary); }));

  status = CatchAll([&] { return WriteRankFile(temporary, parts); });
  status = Agree(group, status, [&](int rank) {
    return absl::StrCat("write ", temporary, "/",
                        RankFileName(rank, group.size()));
  });

  if (status.ok()) {
    if (first) {
      status = CatchAll(
          [&] { return Commit(temporary, folder, train_state, parts); });
    }
    status = Agree(group, status,
                   [&](int) { return absl::StrCat("complete ", folder); });
  }
  if (first) {
    if (status.ok()) {
      RemoveOldCheckpoints(output_dir, keep, train_state.step, best_step);
    } else {
      RemoveTree(temporary).IgnoreError();
    }
  }
  return status;
}

// Where elements [begin, begin + length) of a parameter's `kind` go: into
// `tensor` (1-D) from `offset`.
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

// Compares the optimizer's state; the strategy may differ.
absl::Status CheckState(const std::string& folder,
                        std::vector<ManifestState> stored,
                        std::vector<ManifestState> wanted) {
  stored.erase(std::remove_if(stored.begin(), stored.end(),
                              [](const ManifestState& kind) {
                                return absl::StartsWith(kind.name,
                                                        kStrategyKind);
                              }),
               stored.end());
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
    const std::string& folder, const Manifest& manifest,
    const std::vector<Target>& targets) {
  const RangeIndex index(manifest);
  std::map<const ManifestFile*, std::vector<Copy>> copies;
  for (const Target& target : targets) {
    const auto cover =
        index.Cover(target.kind, target.parameter, target.begin, target.length);
    if (!cover.ok()) {
      return DamagedError(absl::StrCat(folder, "/", kManifestFile),
                          cover.status().message());
    }
    for (const RangeIndex::Piece& piece : *cover) {
      copies[piece.file].push_back({&target, piece});
    }
  }
  return copies;
}

// Checks that everything is present, then reads.
absl::Status Fill(const std::string& folder, const Manifest& manifest,
                  const std::vector<Target>& targets) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto copies,
                           FindCopies(folder, manifest, targets));
  std::map<const ManifestFile*, std::unique_ptr<StateFile>> opened;
  for (const auto& [file, file_copies] : copies) {
    CAPSTAN_ASSIGN_OR_RETURN(opened[file], StateFile::Open(folder, *file));
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
            StatePartOf(kind.spec, range, static_cast<int>(i), range.offset,
                        range.offset + range.length);
        targets.push_back({kind.spec.name, (*parts.specs)[range.parameter].name,
                           part.begin, part.length, kind.tensors[s],
                           part.offset});
      }
    }
  }
  return targets;
}

// The strategy's state in the checkpoint: all or nothing.
std::vector<StateKind> StoredStrategyKinds(const CheckpointParts& parts,
                                           const Manifest& manifest) {
  std::vector<StateKind> kinds = StrategyKinds(parts);
  const bool stored =
      std::all_of(kinds.begin(), kinds.end(), [&](const StateKind& kind) {
        return std::any_of(manifest.state.begin(), manifest.state.end(),
                           [&](const ManifestState& stored_kind) {
                             return stored_kind.name == kind.spec.name;
                           });
      });
  return stored ? kinds : std::vector<StateKind>();
}

// Loads everything, or with `state` null only the weights.
absl::Status Load(const std::string& folder, const CheckpointParts& parts,
                  TrainState* state) {
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  CAPSTAN_RETURN_IF_ERROR(CheckParameters(folder, manifest, *parts.specs));
  std::vector<StateKind> kinds = {MasterKind(parts)};
  if (state != nullptr) {
    std::vector<ManifestState> wanted;
    for (StateKind& kind : OptimizerKinds(parts)) {
      wanted.push_back(ManifestStateOf(kind.spec));
      kinds.push_back(std::move(kind));
    }
    CAPSTAN_RETURN_IF_ERROR(CheckState(folder, manifest.state, wanted));
    for (StateKind& kind : StoredStrategyKinds(parts, manifest)) {
      kinds.push_back(std::move(kind));
    }
  }
  CAPSTAN_RETURN_IF_ERROR(Fill(folder, manifest, TargetsOf(parts, kinds)));
  for (OptimizerShard& shard : parts.shards) {
    if (shard.working.defined()) shard.working.copy_(shard.master);
  }
  if (state != nullptr) *state = manifest.train_state;
  return absl::OkStatus();
}

absl::Status LoadTogether(const std::string& folder,
                          const CheckpointParts& parts, TrainState* state) {
  return CatchAll([&] {
    return Agree(*parts.group,
                 CatchAll([&] { return Load(folder, parts, state); }),
                 [&](int) { return absl::StrCat("read ", folder); });
  });
}

}  // namespace

std::string CheckpointFolder(const std::string& output_dir, int64_t step) {
  return absl::StrFormat("%s/step-%08d", Root(output_dir), step);
}

std::string NewestCheckpoint(const std::string& output_dir) {
  const std::map<int64_t, std::string> found = WholeCheckpoints(output_dir);
  return found.empty() ? "" : found.rbegin()->second;
}

bool IsCheckpoint(const std::string& folder) {
  return PathExists(absl::StrCat(folder, "/", kManifestFile));
}

absl::StatusOr<TrainState> CheckpointState(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  return manifest.train_state;
}

absl::StatusOr<std::string> CheckpointConfig(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  return std::move(manifest.config_text);
}

absl::Status SaveCheckpoint(const std::string& output_dir, int keep,
                            const TrainState& train_state,
                            const CheckpointParts& parts, int64_t best_step) {
  return CatchAll(
      [&] { return Save(output_dir, keep, train_state, parts, best_step); });
}

absl::StatusOr<TrainState> LoadCheckpoint(const std::string& folder,
                                          const CheckpointParts& parts) {
  TrainState state;
  CAPSTAN_RETURN_IF_ERROR(LoadTogether(folder, parts, &state));
  return state;
}

absl::Status LoadCheckpointWeights(const std::string& folder,
                                   const CheckpointParts& parts) {
  return LoadTogether(folder, parts, /*state=*/nullptr);
}

absl::StatusOr<uint32_t> FrozenChecksum(const Model& model, uint64_t seed) {
  // A few values of each suffice: another model differs everywhere.
  constexpr int64_t kValues = 64;
  std::string bytes;
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].trainable) continue;
    const int64_t count = std::min(kValues, specs[i].numel());
    std::vector<float> values(count);
    for (const int64_t begin : {int64_t{0}, (specs[i].numel() - count) / 2}) {
      CAPSTAN_RETURN_IF_ERROR(model.InitialValue(static_cast<int>(i), seed,
                                                 begin, count, values.data()));
      bytes.append(reinterpret_cast<const char*>(values.data()),
                   values.size() * sizeof(float));
    }
  }
  return bytes.empty() ? 0 : Crc32c(bytes);
}

absl::StatusOr<std::vector<at::Tensor>> CheckpointWeights(
    const std::string& folder, const std::vector<ParameterSpec>& specs,
    const InitialValues& initial) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  CAPSTAN_RETURN_IF_ERROR(CheckParameters(folder, manifest, specs));
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
            initial(static_cast<int>(i), manifest.train_state.seed,
                    weights.back().mutable_data_ptr<float>()));
      }
    }
    return Fill(folder, manifest, targets);
  }));
  return weights;
}

}  // namespace capstan
