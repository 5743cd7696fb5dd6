// SPDX-License-Identifier: Apache-2.0
//
// convert: others' weights to safetensors, or to a checkpoint of ours.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/convert/weight_source.h"
#include "desk/convert/write_weights.h"
#include "host/config/flag_overrides.h"
#include "host/config/load_config.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/held_folder.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/run_identity.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

struct ConvertOptions {
  std::string input;
  std::string output;
  std::string key;
  bool checkpoint = false;
  RunOptions run;
};

// "F32 290, I64 1".
std::string DtypesText(const WeightSource& source) {
  std::map<std::string, int64_t> counts;
  for (const NamedTensor& weight : source.weights) {
    ++counts[SafetensorsDtypeName(weight.tensor.dtype).value_or("?")];
  }
  return absl::StrJoin(counts, ", ", absl::PairFormatter(" "));
}

// The names that have others' elements: "lm_head.weight = model.embed.weight".
std::string SharedText(const WeightSource& source) {
  std::map<const char*, std::vector<const NamedTensor*>> by_place;
  std::vector<std::string> shared;
  for (const NamedTensor& weight : source.weights) {
    if (weight.tensor.pieces.empty()) continue;
    auto& others = by_place[weight.tensor.pieces[0].data];
    const auto same = std::find_if(
        others.begin(), others.end(),
        [&](const auto* other) { return other->tensor.SameAs(weight.tensor); });
    if (same != others.end()) {
      shared.push_back(absl::StrCat(weight.name, " = ", (*same)->name));
    } else {
      others.push_back(&weight);
    }
  }
  return absl::StrJoin(shared, ", ");
}

// "epoch, loss, and 7 more: not weights", a line a reason.
std::vector<std::string> LeftOut(const WeightSource& source) {
  constexpr size_t kMostNames = 5;
  std::map<std::string, std::vector<std::string>> names;  // by reason
  for (const auto& [name, why] : source.left_out) names[why].push_back(name);
  std::vector<std::string> lines;
  for (auto& [why, some] : names) {
    const size_t more = some.size() - std::min(some.size(), kMostNames);
    some.resize(some.size() - more);
    lines.push_back(absl::StrCat(
        absl::StrJoin(some, ", "),
        more > 0 ? absl::StrCat(", and ", more, " more") : "", ": ", why));
  }
  return lines;
}

std::string Table(const WeightSource& source, const std::string& output) {
  int64_t parameters = 0;
  for (const NamedTensor& weight : source.weights) {
    parameters += weight.tensor.numel();
  }
  std::vector<std::pair<std::string, std::string>> rows = {
      {"input", source.format},
      {"output", output},
      {"tensors", WithCommas(static_cast<int64_t>(source.weights.size()))},
      {"parameters", WithCommas(parameters)},
      {"dtypes", DtypesText(source)},
  };
  const std::string shared = SharedText(source);
  if (!shared.empty()) {
    rows.emplace_back("shared",
                      absl::StrCat(shared, " (written under each name)"));
  }
  if (source.updates.has_value()) {
    rows.emplace_back("updates", WithCommas(*source.updates));
  }
  for (std::string& row : LeftOut(source)) {
    rows.emplace_back("left out", std::move(row));
  }
  // Names are the file's.
  return PrintableText(TableText(rows));
}

absl::Status CheckFlags(const ConvertOptions& options) {
  if (options.checkpoint && options.run.configs.empty()) {
    return absl::InvalidArgumentError(
        "--checkpoint needs --config=FILE, the run that is to go on from it");
  }
  if (!options.checkpoint && !options.run.configs.empty()) {
    return absl::InvalidArgumentError(
        "--config is the run of --checkpoint: add that, or leave --config out");
  }
  if (!options.checkpoint && options.run.print_config) {
    return absl::InvalidArgumentError(
        "--print_config prints the run of --checkpoint: add that, or leave "
        "--print_config out");
  }
  return absl::OkStatus();
}

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
      OrderOfRun(job.loaded.config, job.parts, global_batch);
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

// Writes a checkpoint of the run `job` into OUTPUT_DIR/checkpoints, from which
// the run goes on: weights and the optimizer's moments are the source's, its
// updates are the run's steps, and the data position is that after as many
// steps. Returns its folder. It appears whole or not at all. An error if the
// source lacks a trained parameter or a state that the run's optimizer keeps.
// Memory holds about a GiB, and one parameter.
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
      StepsOfRun(job.loaded.config.train(), EpochRows(job.parts),
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

// Returns the command that goes on from the checkpoint.
absl::StatusOr<std::string> ConvertToCheckpoint(const WeightSource& source,
                                                const std::string& output,
                                                RunOptions run) {
  run.overrides.push_back(absl::StrCat("output_dir=", output));
  const absl::StatusOr<std::unique_ptr<Prepared>> made = Prepare(run);
  if (!made.ok()) {
    return AsTyped(made.status(),
                   {{run.overrides.back(), absl::StrCat("--output=", output)}});
  }
  const std::unique_ptr<Prepared>& prepared = *made;
  if (prepared == nullptr) return std::string();  // --print_config
  const absl::StatusOr<std::string> folder =
      WriteCheckpoint(source, prepared->job, output);
  if (!folder.ok()) return WithCode(folder.status(), "convert/checkpoint");
  run.overrides.emplace_back("train.resume=AUTO");
  std::vector<std::string> words = WordsOf(run);
  words.insert(words.begin(), "trainer");
  return absl::StrCat("wrote ", *folder, "; go on from it: ", ShellText(words));
}

absl::StatusOr<int> Convert(const ConvertOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(WithCode(CheckFlags(options), "command/flag"));
  std::string output = FromCaller(options.output);
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  // Before much is read.
  CAPSTAN_RETURN_IF_ERROR(CheckOutput(output));
  const absl::StatusOr<WeightSource> opened =
      OpenWeightSource(FromCaller(options.input), options.key);
  if (!opened.ok()) {
    return WithCode(opened.status(), ErrnoOf(opened.status()) == ENOENT
                                         ? "path/missing"
                                         : "convert/input");
  }
  const WeightSource& source = *opened;
  std::string note;
  if (options.checkpoint) {
    CAPSTAN_ASSIGN_OR_RETURN(note,
                             ConvertToCheckpoint(source, output, options.run));
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(note, WriteWeights(source, output));
  }
  std::cout << Table(source, output);
  for (const std::string& line : source.notes) {
    std::cout << PrintableText(line) << "\n";
  }
  if (!options.checkpoint && !source.moments.empty()) {
    std::cout << "the optimizer's moments are left out: --checkpoint keeps "
                 "them\n";
  }
  if (!note.empty()) std::cout << PrintableText(note) << "\n";
  std::cout << std::flush;
  return 0;
}

void AddFlags(Flags& flags, ConvertOptions* options) {
  flags
      .Add("input", &options->input,
           "A .pt, .pth or .bin file, pytorch_model.bin.index.json, or a "
           "folder: with pytorch_model.bin, of DeepSpeed's ZeRO or of "
           "torch.distributed.checkpoint")
      .Type("PATH")
      .Required();
  flags
      .Add("--output", &options->output,
           "The .safetensors file or the folder to write; with --checkpoint, "
           "the run's folder")
      .Type("PATH")
      .Required();
  flags.Add("--key", &options->key,
            "Which of the file's dicts has the weights: KEY or KEY.KEY; "
            "default: the one that has tensors");
  flags.Add("--checkpoint", &options->checkpoint,
            "Write a checkpoint of the run in --config, with the optimizer's "
            "moments, from which it goes on");
  AddRunOptions(flags, &options->run, "--config");
}

const RegisterFunction<ConvertOptions> convert("convert", AddFlags, Convert);

}  // namespace
}  // namespace capstan
