// SPDX-License-Identifier: Apache-2.0
//
// convert: others' weights to safetensors, or to a checkpoint of ours.
#include <algorithm>
#include <cerrno>
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
#include "desk/convert/write_checkpoint.h"
#include "desk/convert/write_weights.h"
#include "host/config/flag_overrides.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/session/output_folder.h"

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
  std::vector<std::string> words = {"trainer"};
  for (const std::string& config : run.configs) {
    words.push_back(absl::StrCat("--config=", config));
  }
  for (const std::string& folder : run.plugin_path) {
    words.push_back(absl::StrCat("--plugin_path=", folder));
  }
  run.overrides.emplace_back("train.resume=AUTO");
  for (const std::string& change : run.overrides) {
    words.insert(words.end(), {"--set", change});
  }
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
  if (!note.empty()) std::cout << note << "\n";
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

const RegisterFunction<ConvertOptions> convert(
    105, "convert", "Make safetensors or a checkpoint of others' weights",
    AddFlags, Convert);

}  // namespace
}  // namespace capstan
