// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "plugins/sdk/safetensors.h"
#include "plugins/sdk/status.h"
#include "trainer/checkpoint/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/file_util.h"
#include "trainer/checkpoint/manifest.h"

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
        folder, ": the checkpoint was made by another model: ", how));
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

absl::Status CheckStateNames(const std::string& folder,
                             std::vector<std::string> stored,
                             std::vector<std::string> wanted) {
  const auto text = [](const std::vector<std::string>& names) {
    return names.empty() ? "none" : absl::StrJoin(names, ", ");
  };
  const std::string was = text(stored);
  const std::string is = text(wanted);
  std::sort(stored.begin(), stored.end());
  std::sort(wanted.begin(), wanted.end());
  if (stored == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, ": the checkpoint was saved with optimizer state ",
                   was, "; this run's optimizer has ", is,
                   ": resume with the optimizer that it was saved with"));
}

// Opens a file of the checkpoint, whose every byte must be as written.
absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenStateFile(
    const std::string& folder, const ManifestFile& file) {
  const std::string path = absl::StrCat(folder, "/", file.name);
  CAPSTAN_ASSIGN_OR_RETURN(const FileSum sum, SumFile(path));
  if (sum.bytes != file.bytes) {
    return absl::DataLossError(
        absl::StrFormat("%s: is damaged: it has %d bytes, %s says %d", path,
                        sum.bytes, kManifestFile, file.bytes));
  }
  if (sum.crc32c != file.crc32c) {
    return absl::DataLossError(
        absl::StrFormat("%s: is damaged: its CRC-32C is %08x, %s says %08x",
                        path, sum.crc32c, kManifestFile, file.crc32c));
  }
  return SafetensorsReader::Open(path);
}

void CopyIn(const TensorEntry& entry, const Copy& copy) {
  const int64_t size = static_cast<int64_t>(c10::elementSize(entry.dtype));
  const int64_t skip = copy.piece.begin - copy.piece.range->begin;
  // Mapped bytes may be unaligned.
  const at::Tensor values = at::empty({copy.piece.length}, entry.dtype);
  std::memcpy(values.data_ptr(), entry.data + skip * size,
              copy.piece.length * size);
  copy.target->tensor
      .narrow(0, copy.target->offset + copy.piece.begin - copy.target->begin,
              copy.piece.length)
      .copy_(values);
}

// Checks all, then copies.
absl::Status Fill(const std::string& folder, const Manifest& manifest,
                  const std::vector<Target>& targets) {
  const RangeIndex index(manifest);
  std::map<const ManifestFile*, std::vector<Copy>> copies;
  for (const Target& target : targets) {
    const auto cover =
        index.Cover(target.kind, target.parameter, target.begin, target.length);
    if (!cover.ok()) {
      return Annotate(cover.status(), absl::StrCat(folder, "/", kManifestFile));
    }
    for (const RangeIndex::Piece& piece : *cover) {
      copies[piece.file].push_back({&target, piece});
    }
  }
  std::vector<std::pair<const TensorEntry*, const Copy*>> work;
  std::vector<std::unique_ptr<SafetensorsReader>> readers;
  for (const auto& [file, file_copies] : copies) {
    CAPSTAN_ASSIGN_OR_RETURN(auto reader, OpenStateFile(folder, *file));
    for (const Copy& copy : file_copies) {
      const std::string key = copy.piece.range->Key();
      const auto found = reader->tensors().find(key);
      if (found == reader->tensors().end() ||
          found->second.numel != copy.piece.range->length) {
        return absl::DataLossError(
            absl::StrFormat("%s/%s: wants a tensor '%s' of %d elements", folder,
                            file->name, key, copy.piece.range->length));
      }
      work.emplace_back(&found->second, &copy);
    }
    readers.push_back(std::move(reader));
  }
  for (const auto& [entry, copy] : work) CopyIn(*entry, *copy);
  return absl::OkStatus();
}

std::vector<Target> ShardTargets(const CheckpointParts& parts) {
  std::vector<Target> targets;
  for (size_t s = 0; s < parts.shards.size(); ++s) {
    for (const ParameterRange& range : parts.shards[s].ranges) {
      const std::string& name = (*parts.specs)[range.parameter].name;
      targets.push_back({kMasterKind, name, range.begin, range.length,
                         parts.shards[s].master, range.offset});
      for (size_t k = 0; k < parts.state_names.size(); ++k) {
        targets.push_back({parts.state_names[k], name, range.begin,
                           range.length, (*parts.state)[s][k], range.offset});
      }
    }
  }
  return targets;
}

absl::StatusOr<TrainState> Load(const std::string& folder,
                                const CheckpointParts& parts) {
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  CAPSTAN_RETURN_IF_ERROR(CheckParameters(folder, manifest, *parts.specs));
  CAPSTAN_RETURN_IF_ERROR(
      CheckStateNames(folder, manifest.state_names, parts.state_names));
  CAPSTAN_RETURN_IF_ERROR(Fill(folder, manifest, ShardTargets(parts)));
  for (OptimizerShard& shard : parts.shards) {
    if (shard.working.defined()) shard.working.copy_(shard.master);
  }
  return manifest.train_state;
}

}  // namespace

absl::StatusOr<TrainState> LoadCheckpoint(const std::string& folder,
                                          const CheckpointParts& parts) {
  try {
    return Load(folder, parts);
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

absl::StatusOr<std::vector<at::Tensor>> CheckpointWeights(
    const std::string& folder, const std::vector<ParameterSpec>& specs) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  CAPSTAN_RETURN_IF_ERROR(CheckParameters(folder, manifest, specs));
  std::vector<at::Tensor> weights;
  std::vector<Target> targets;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    for (const ParameterSpec& spec : specs) {
      weights.push_back(at::empty(spec.shape, at::kFloat));
      targets.push_back({kMasterKind, spec.name, 0, spec.numel(),
                         weights.back().view({-1}), 0});
    }
    return Fill(folder, manifest, targets);
  }));
  return weights;
}

}  // namespace capstan
