// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/checkpoint/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace {

std::string RankFileName(int rank, int world_size) {
  return absl::StrFormat("state-%05d-of-%05d.safetensors", rank, world_size);
}

// Where a rank leaves its part of the manifest for rank 0.
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
        // Who has a parameter's first element writes what it has once.
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

// Writes what this rank owns, and the note of it for rank 0.
absl::Status WriteRankFile(const std::string& folder,
                           const CheckpointParts& parts) {
  const int rank = parts.group->rank();
  CAPSTAN_ASSIGN_OR_RETURN(
      const ManifestFile file,
      WriteStateFile(folder, RankFileName(rank, parts.group->size()),
                     OwnedPieces(parts)));
  return WriteWholeFile(RankNotePath(folder, rank), ManifestFileToJson(file));
}

// Makes the manifest of all ranks' notes.
absl::StatusOr<Manifest> MergeNotes(const std::string& folder,
                                    const TrainState& train_state,
                                    const CheckpointParts& parts) {
  Manifest manifest;
  manifest.train_state = train_state;
  manifest.world_size = parts.group->size();
  manifest.config_text = parts.config_text;
  for (const StateKind& kind : OptimizerKinds(parts)) {
    manifest.state.push_back(kind.spec);
  }
  for (const StateKind& kind : StrategyKinds(parts)) {
    manifest.state.push_back(kind.spec);
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
  // A strategy that forgets elements must not pass for a checkpoint.
  const absl::Status status = CheckManifest(manifest);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("the strategy doesn't give each element to one rank to "
                     "save: ",
                     status.message()));
  }
  return manifest;
}

// Rank 0, after all have written: the checkpoint comes into being.
absl::Status Commit(const std::string& temporary, const std::string& folder,
                    const TrainState& train_state,
                    const CheckpointParts& parts) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest,
                           MergeNotes(temporary, train_state, parts));
  for (int rank = 0; rank < parts.group->size(); ++rank) {
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(RankNotePath(temporary, rank)));
  }
  // The files' names are on disk before the manifest that speaks of them.
  CAPSTAN_RETURN_IF_ERROR(SyncFolder(temporary, /*files=*/false));
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(
      absl::StrCat(temporary, "/", kManifestFile), ManifestToJson(manifest)));
  CAPSTAN_RETURN_IF_ERROR(SyncFolder(temporary, /*files=*/false));
  return ReplaceFolder(temporary, folder);
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
    status = RemoveTree(temporary);  // a killed run's
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

}  // namespace

absl::Status SaveCheckpoint(const std::string& output_dir, int keep,
                            const TrainState& train_state,
                            const CheckpointParts& parts, int64_t best_step) {
  return CatchAll(
      [&] { return Save(output_dir, keep, train_state, parts, best_step); });
}

}  // namespace capstan
