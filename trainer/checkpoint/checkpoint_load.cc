// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/checkpoint/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/range_index.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace {

// Elements [begin, begin + length) of `kind` of a parameter are wanted in
// `tensor` (1-D) from element `offset`.
struct Target {
  std::string kind;
  std::string parameter;
  int64_t begin = 0;
  int64_t length = 0;
  at::Tensor tensor;
  int64_t offset = 0;
};

// One copy from a file.
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
  // In the checkpoint's order, so that it is the first.
  for (const ManifestParameter& p : manifest.parameters) {
    if (stored.count(p.name) > 0) {
      return differs(
          absl::StrCat("this run's has no parameter '", p.name, "'"));
    }
  }
  return absl::OkStatus();
}

bool IsStrategyKind(const OptimizerStateSpec& spec) {
  return absl::StartsWith(spec.name, kStrategyKind);
}

// Names, and what isn't as the masters: "exp_avg, scale (Float, block 256)".
std::string SpecsText(const std::vector<OptimizerStateSpec>& specs) {
  if (specs.empty()) return "none";
  return absl::StrJoin(
      specs, ", ", [](std::string* out, const OptimizerStateSpec& spec) {
        absl::StrAppend(out, spec.name);
        if (spec.dtype != c10::ScalarType::Undefined) {
          absl::StrAppend(out, " (", c10::toString(spec.dtype), ")");
        }
        if (spec.per_parameter > 0) {
          absl::StrAppend(out, " (", spec.per_parameter, " a parameter)");
        } else if (spec.block > 1) {
          absl::StrAppend(out, " (blocks of ", spec.block, ")");
        }
      });
}

absl::Status CheckState(const std::string& folder,
                        std::vector<OptimizerStateSpec> stored,
                        std::vector<OptimizerStateSpec> wanted) {
  stored.erase(std::remove_if(stored.begin(), stored.end(), IsStrategyKind),
               stored.end());
  const std::string was = SpecsText(stored);
  const std::string is = SpecsText(wanted);
  for (auto* specs : {&stored, &wanted}) {
    std::sort(specs->begin(), specs->end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
  }
  if (SpecsText(stored) == SpecsText(wanted)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, ": the checkpoint was saved with optimizer state ",
                   was, "; this run's optimizer has ", is,
                   ": resume with the optimizer that it was saved with"));
}

// Finds the piece that each target is made of, by the file they lie in.
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

// Checks that all is there, then reads.
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

// What of the strategy's state the checkpoint has: all or nothing.
std::vector<StateKind> StoredStrategyKinds(const CheckpointParts& parts,
                                           const Manifest& manifest) {
  std::vector<StateKind> kinds = StrategyKinds(parts);
  const bool stored =
      std::all_of(kinds.begin(), kinds.end(), [&](const StateKind& kind) {
        return std::any_of(manifest.state.begin(), manifest.state.end(),
                           [&](const OptimizerStateSpec& spec) {
                             return spec.name == kind.spec.name;
                           });
      });
  return stored ? kinds : std::vector<StateKind>();
}

// All of it, or with `state` null the weights alone.
absl::Status Load(const std::string& folder, const CheckpointParts& parts,
                  TrainState* state) {
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  CAPSTAN_RETURN_IF_ERROR(CheckParameters(folder, manifest, *parts.specs));
  std::vector<StateKind> kinds = {MasterKind(parts)};
  if (state != nullptr) {
    std::vector<OptimizerStateSpec> wanted;
    for (StateKind& kind : OptimizerKinds(parts)) {
      wanted.push_back(kind.spec);
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
  // A few places of each: another model differs everywhere.
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
