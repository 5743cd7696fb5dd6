// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/write_checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/held_folder.h"
#include "trainer/session/run_identity.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

// A parameter's values of one kind in the checkpoint.
struct Part {
  std::string kind;
  const ParameterSpec* parameter = nullptr;
  const TensorView* tensor = nullptr;
  int64_t bytes() const {
    return parameter->numel() * static_cast<int64_t>(sizeof(float));
  }
};

// An adapter's parameters have PEFT's names in its files, and in a model that
// is being trained "default" before their ends, the adapter's name.
std::string PlainName(const std::string& name) {
  const size_t at = name.find(".default.weight");
  return at == std::string::npos ? name
                                 : absl::StrCat(name.substr(0, at), ".weight");
}

using ByName = std::map<std::string, const TensorView*>;

absl::StatusOr<const TensorView*> Find(const ByName& tensors,
                                       const ParameterSpec& parameter,
                                       absl::string_view what) {
  const auto found = tensors.find(parameter.name);
  if (found == tensors.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the input has no ", what, " of '", parameter.name,
        "', which the config's run trains: name the config of the model that "
        "it is of"));
  }
  if (found->second->shape != parameter.shape) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, " of '", parameter.name, "' has shape ",
        ShapeText(found->second->shape), " in the input and ",
        ShapeText(parameter.shape),
        " in the config's run: name the config of the model that it is of"));
  }
  return found->second;
}

// All kinds of all trained parameters, parameter by parameter.
absl::StatusOr<std::vector<Part>> PartsOf(
    const WeightSource& source, const TrainJob& job,
    const std::vector<StateShape>& shapes) {
  std::map<std::string, ByName> kinds;
  for (const NamedTensor& weight : source.weights) {
    kinds[kMasterKind][PlainName(weight.name)] = &weight.tensor;
  }
  for (const auto& [kind, tensors] : source.moments) {
    for (const auto& [name, tensor] : tensors) {
      kinds[kind][PlainName(name)] = &tensor;
    }
  }
  for (const StateShape& shape : shapes) {
    const std::string& kind = shape.spec.name;
    if (kinds.count(kind) == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the run's optimizer, ", job.parts.optimizer_name, ", keeps ", kind,
          " of each parameter, which the input doesn't have: choose in the "
          "config the optimizer that it was trained with, or convert it "
          "without --checkpoint and name the result as model.pretrained"));
    }
    if (shape.spec.block != 1 || shape.spec.per_parameter > 0 ||
        !shape.numels.empty() ||
        shape.spec.dtype != c10::ScalarType::Undefined) {
      return absl::UnimplementedError(
          absl::StrCat("the run's optimizer, ", job.parts.optimizer_name,
                       ", keeps ", kind, " in another form than the input"));
    }
  }
  std::vector<Part> parts;
  for (const ParameterSpec& parameter : job.parts.model->parameters()) {
    if (!parameter.trainable) continue;
    CAPSTAN_ASSIGN_OR_RETURN(const TensorView* weight,
                             Find(kinds[kMasterKind], parameter, "weight"));
    parts.push_back({kMasterKind, &parameter, weight});
    for (const StateShape& shape : shapes) {
      const std::string& kind = shape.spec.name;
      CAPSTAN_ASSIGN_OR_RETURN(const TensorView* tensor,
                               Find(kinds[kind], parameter, kind));
      parts.push_back({kind, &parameter, tensor});
    }
  }
  return parts;
}

// The values in float32, 1-D.
at::Tensor ValuesOf(const TensorView& tensor) {
  at::Tensor stored = at::empty({tensor.numel()}, tensor.dtype);
  tensor.CopyTo(static_cast<char*>(stored.mutable_data_ptr()));
  tensor.Forget();
  return stored.to(at::kFloat);
}

// Where the parts are divided into files, as if each were a rank's: the first
// of each, and the end.
std::vector<size_t> FilesOf(const std::vector<Part>& parts) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  std::vector<size_t> first = {0};
  int64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (bytes > 0 && bytes + parts[i].bytes() > kMostBytes) {
      first.push_back(i);
      bytes = 0;
    }
    bytes += parts[i].bytes();
  }
  first.push_back(parts.size());
  return first;
}

absl::Status WriteFiles(const std::string& folder,
                        const std::vector<Part>& parts,
                        const std::vector<size_t>& first) {
  const int files = static_cast<int>(first.size()) - 1;
  for (int file = 0; file < files; ++file) {
    std::vector<StatePiece> pieces;
    for (size_t i = first[file]; i < first[file + 1]; ++i) {
      StatePiece piece;
      piece.range.kind = parts[i].kind;
      piece.range.parameter = parts[i].parameter->name;
      piece.range.length = parts[i].parameter->numel();
      piece.elements = ValuesOf(*parts[i].tensor);
      pieces.push_back(std::move(piece));
    }
    CAPSTAN_RETURN_IF_ERROR(WriteRank(folder, file, files, pieces));
  }
  return MappedFile::CheckAll();
}

// The run after as many steps as the source's optimizer has done.
absl::StatusOr<TrainState> StateAfter(int64_t updates, const TrainJob& job) {
  const Train& train = job.loaded.config.train();
  const int64_t global_batch = job.batch.global_batch_size;
  const DataOrder order =
      OrderOf(*job.parts.train_data, train.seed(),
              job.loaded.config.batch().group_by_length(), global_batch);
  TrainState state;
  state.step = updates;
  state.optimizer_steps = updates;
  if (__builtin_mul_overflow(updates, global_batch, &state.samples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the input says that it has done ", updates, " updates"));
  }
  state.seed = train.seed();
  state.data_size = order.size;
  state.data_shuffle = order.shuffle;
  state.data_group = order.group;
  state.global_batch_size = global_batch;
  CAPSTAN_ASSIGN_OR_RETURN(state.frozen_crc32c,
                           FrozenChecksum(*job.parts.model, state.seed));
  state.loss_scale = 0.0;  // its policy's
  return state;
}

}  // namespace

absl::StatusOr<std::string> WriteCheckpoint(const WeightSource& source,
                                            const TrainJob& job,
                                            const std::string& output_dir) {
  if (!source.updates.has_value() || *source.updates < 1) {
    return absl::FailedPreconditionError(
        "the input has no optimizer state by the names of weights, so that no "
        "run can go on from it: convert it without --checkpoint and name the "
        "result as model.pretrained");
  }
  const std::vector<ParameterSpec>& specs = job.parts.model->parameters();
  const std::vector<StateShape> shapes =
      StateShapesOf(*job.parts.optimizer, specs);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Part> parts,
                           PartsOf(source, job, shapes));
  const std::vector<size_t> first = FilesOf(parts);

  Manifest manifest;
  manifest.world_size = static_cast<int>(first.size()) - 1;
  CAPSTAN_ASSIGN_OR_RETURN(manifest.train_state,
                           StateAfter(*source.updates, job));
  manifest.config_text = PrintConfig(job.loaded.config);
  const int64_t steps =
      StepsOfRun(job.loaded.config.train(), job.parts.train_data->size(),
                 job.batch.global_batch_size);
  CAPSTAN_ASSIGN_OR_RETURN(IdentifiedRun identified,
                           IdentifyRun(job.loaded.config, job.parts, steps));
  manifest.identity = std::move(identified.identity);
  for (const StateShape& shape : shapes) {
    manifest.state.push_back({shape.spec.name});
  }
  for (const ParameterSpec& spec : specs) {
    manifest.parameters.push_back({spec.name, spec.shape, spec.trainable});
  }

  CAPSTAN_RETURN_IF_ERROR(MakeFolder(output_dir));
  // To the end of this process, as by a run: another that writes there mustn't
  // find its checkpoints removed.
  CAPSTAN_RETURN_IF_ERROR(
      HoldFolder(output_dir, "convert", kLockPatience).status());
  if (PathExists(output_dir + "/checkpoints")) {
    return WithCode(
        absl::AlreadyExistsError(absl::StrCat(
            output_dir, " has checkpoints already; name another --output")),
        "path/exists");
  }

  SaveRequest request;
  request.output_dir = output_dir;
  request.train_state = manifest.train_state;
  request.tokenizer = job.parts.train_data->tokenizer();
  int64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes();
  absl::Status written = BeginSave(request, bytes);
  if (written.ok()) written = WriteFiles(request.temporary(), parts, first);
  if (written.ok()) written = CommitSave(request, std::move(manifest));
  if (written.ok()) return request.folder();
  // Nobody else's: it is held, and there was nothing before.
  for (const char* made : {"/checkpoints", "/.lock"}) {
    RemoveTree(output_dir + made).IgnoreError();
  }
  return written;
}

}  // namespace capstan
