// SPDX-License-Identifier: Apache-2.0
//
// export: a trained model as a Hugging Face folder or a GGUF file, which is
// read again and compared before it appears.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/checkpoints/merge_adapter.h"
#include "desk/convert/write_weights.h"
#include "desk/export/peers.h"
#include "desk/export/prove.h"
#include "desk/export/write_gguf.h"
#include "desk/generate/model_flags.h"
#include "desk/init/undo.h"
#include "inference/load/generator.h"
#include "inference/load/sample_logits.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"
#include "trainer/session/run_folders.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ExportOptions {
  std::string model;
  AdapterOptions adapter;
  std::string output;
  std::string format = "hf";
  std::string type;
  std::string pre;
  std::string text;
  bool json = false;
  std::vector<std::string> plugin_path;
};

// As its files have it.
absl::StatusOr<Generator> LoadStored(const std::string& folder,
                                     const ExportOptions& options) {
  return LoadWithPlugins(folder, {}, options.plugin_path, {},
                         {WeightForm::kStored});
}

// Whether a file has weights that this trainer doesn't read.
bool IsOtherWeights(const std::string& name) {
  static constexpr const char* kEnds[] = {
      ".bin",  ".bin.index.json", ".ckpt", ".gguf", ".h5",
      ".onnx", ".msgpack",        ".pt",   ".pth"};
  return absl::StartsWith(name, "consolidated") ||
         std::any_of(
             std::begin(kEnds), std::end(kEnds),
             [&name](const char* end) { return absl::EndsWith(name, end); });
}

// A file, or a folder with what is in it.
absl::Status Copy(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::is_directory(from, error)) {
    CAPSTAN_RETURN_IF_ERROR(MakeFolder(to.string()));
    fs::directory_iterator entry(from, error);
    for (; !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      CAPSTAN_RETURN_IF_ERROR(
          Copy(entry->path(), to / entry->path().filename()));
    }
    return error ? WriteError(to.string(), error.value()) : absl::OkStatus();
  }
  // std::filesystem says EIO of a full disk.
  CAPSTAN_ASSIGN_OR_RETURN(
      const auto file,
      MappedFile::Open(from.string(),
                       {/*in_order=*/true, /*may_be_empty=*/true}));
  CAPSTAN_ASSIGN_OR_RETURN(
      OutputFile copy, OutputFile::Open(to.string(), OutputFile::Start::kNew));
  CAPSTAN_RETURN_IF_ERROR(copy.Append(file->bytes()));
  CAPSTAN_RETURN_IF_ERROR(copy.Close());
  return file->Check();
}

// The files of a folder, and its chat templates; a note names what is left out,
// but for hidden files.
absl::Status CopyFiles(const std::string& from, const std::string& to,
                       ExportReport* report) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(to));
  std::error_code error;
  std::vector<std::string> left_out;
  fs::directory_iterator entry(from, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name[0] == '.') continue;
    const bool copies =
        name == "additional_chat_templates" ||
        (entry->is_regular_file(error) && !IsOtherWeights(name));
    if (!copies) {
      left_out.push_back(name);
      continue;
    }
    CAPSTAN_RETURN_IF_ERROR(Copy(entry->path(), fs::path(to) / name));
  }
  if (error) return WriteError(from, error.value());
  if (!left_out.empty()) {
    std::sort(left_out.begin(), left_out.end());
    report->Note(absl::StrCat("not copied: ", absl::StrJoin(left_out, ", ")));
  }
  return absl::OkStatus();
}

// Writes base and adapter as one folder; returns a note, or "".
absl::StatusOr<std::string> Merge(const ModelSources& sources,
                                  const std::string& to,
                                  const ExportOptions& options) {
  absl::StatusOr<std::string> note = MergeAdapter(
      {sources.model, sources.adapter, to, options.adapter.other_base});
  if (note.ok() || ErrnoOf(note.status()) != 0) return note;
  return WithCode(note.status(), "model/adapter");
}

// Whether the model fits this machine's memory in float32.
absl::StatusOr<bool> Fits(const ModelSources& sources,
                          const ExportOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const Generator generator,
                           LoadStored(sources.model, options));
  return FitsInFloat32(*generator.model);
}

// Compares what was written with the source, and with what transformers makes
// of it.
absl::Status ProveFolder(const ModelSources& sources, const std::string& to,
                         const ExportOptions& options, bool merges,
                         ExportReport* report) {
  const bool adapter = options.format == "adapter";
  CAPSTAN_ASSIGN_OR_RETURN(const bool fits, Fits(sources, options));
  if (!fits) {
    report->NotCompared("read again", kTooLarge);
    return absl::OkStatus();
  }
  std::vector<int64_t> tokens;
  CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor wanted,
                           FixedLogits(sources.model, sources.adapter,
                                       options.plugin_path, &tokens));
  CAPSTAN_ASSIGN_OR_RETURN(
      const at::Tensor got,
      FixedLogits(adapter ? sources.model : to, adapter ? to : "",
                  options.plugin_path, &tokens));
  // Merging rounds weights to the base's dtype, by up to 2^-9 of themselves.
  CAPSTAN_RETURN_IF_ERROR(CompareLogits(wanted, got, merges ? 5e-2 : 0.0,
                                        "read again", "what was written",
                                        report));
  if (adapter) return absl::OkStatus();
  const absl::StatusOr<at::Tensor> theirs = AskTransformers(to, tokens);
  if (!theirs.ok()) {
    report->NotCompared("transformers", theirs.status().message());
    return absl::OkStatus();
  }
  return CompareLogits(got, *theirs, 1e-3, "transformers", "transformers",
                       report);
}

// A Hugging Face folder or, with --format=adapter, a PEFT folder.
absl::Status ExportFolder(const ModelSources& sources, const std::string& to,
                          const ExportOptions& options, ExportReport* report) {
  const bool adapter = options.format == "adapter";
  const bool merges = !adapter && !sources.adapter.empty();
  if (merges) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string note,
                             Merge(sources, to, options));
    if (!note.empty()) report->Note(note);
  } else {
    CAPSTAN_RETURN_IF_ERROR(
        CopyFiles(adapter ? sources.adapter : sources.model, to, report));
  }
  return ProveFolder(sources, to, options, merges, report);
}

// Formats of ChatTemplate as Go's templates, which Ollama fills in. What it
// begins with is the tokenizer's begin token, which Ollama adds.
const char* GoTemplate(const std::string& format) {
  static const auto* const templates = new std::map<std::string, const char*>{
      {"chatml",
       "{{ range .Messages }}<|im_start|>{{ .Role }}\n"
       "{{ .Content }}<|im_end|>\n"
       "{{ end }}<|im_start|>assistant\n"},
      {"llama3",
       "{{ range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n"
       "\n"
       "{{ .Content }}<|eot_id|>{{ end }}"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"gemma",
       // A system message is the begin of the first turn.
       "{{ $first := \"\" }}{{ range .Messages }}"
       "{{ if eq .Role \"system\" }}{{ $first = .Content }}{{ else }}"
       "<start_of_turn>"
       "{{ if eq .Role \"assistant\" }}model{{ else }}user{{ end }}\n"
       "{{ if $first }}{{ $first }}\n\n{{ $first = \"\" }}{{ end }}"
       "{{ .Content }}<end_of_turn>\n"
       "{{ end }}{{ end }}<start_of_turn>model\n"},
  };
  const auto found = templates->find(format);
  return found == templates->end() ? nullptr : found->second;
}

// A Modelfile, for Ollama, of the GGUF file `name` beside it. TEMPLATE and the
// text that ends a turn are there if the tokenizer's chat template is one of a
// known format; else Ollama looks at the file's own.
std::string ModelfileText(const std::string& name, const Tokenizer& tokenizer) {
  std::string text = absl::StrCat("FROM ./", name, "\n");
  const absl::StatusOr<std::unique_ptr<ChatTemplate>> chat =
      ChatTemplate::Recognise(tokenizer);
  if (!chat.ok()) return text;
  // SmolLM 2's is ChatML with a system message of its own.
  const bool smollm2 = (*chat)->name() == "smollm2";
  const char* const go = GoTemplate(smollm2 ? "chatml" : (*chat)->name());
  if (go == nullptr) return text;
  absl::StrAppend(&text, "TEMPLATE \"\"\"", go, "\"\"\"\n", "PARAMETER stop \"",
                  (*chat)->end_of_turn(), "\"\n");
  if (smollm2) {
    absl::StrAppend(&text,
                    "SYSTEM You are a helpful AI assistant named SmolLM, "
                    "trained by Hugging Face\n");
  }
  return text;
}

// A folder with model.gguf and Modelfile.
absl::Status ExportGguf(const ModelSources& sources, const std::string& to,
                        const ExportOptions& options, ExportReport* report) {
  std::string text;
  if (!options.text.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(text, ReadWholeFile(FromCaller(options.text)));
    if (text.empty()) {
      return FieldError("--text",
                        absl::StrCat(options.text,
                                     " is empty: name a file with text, or "
                                     "leave --text out"));
    }
  }
  std::string whole = sources.model;
  if (!sources.adapter.empty()) {
    whole = to + "-merged";
    // Its note is about that folder, which doesn't stay.
    CAPSTAN_RETURN_IF_ERROR(Merge(sources, whole, options).status());
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Generator generator,
                           LoadStored(whole, options));
  if (generator.tokenizer == nullptr) {
    return WithCode(
        absl::NotFoundError(absl::StrCat(
            whole,
            " has no tokenizer that can be read, and a GGUF file needs "
            "one: ",
            generator.tokenizer_error.message())),
        "export/tokenizer");
  }
  GgufExport request;
  request.type = options.type.empty() ? "F16" : options.type;
  request.pre = options.pre;
  request.name =
      ModelName(sources.adapter.empty() ? sources.model : sources.adapter);
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(to));
  const std::string path = to + "/model.gguf";
  CAPSTAN_ASSIGN_OR_RETURN(
      const LlamaModel written,
      WriteGguf(*generator.model, *generator.tokenizer, request, path));
  report->Tell("type", request.type, request.type);
  CAPSTAN_RETURN_IF_ERROR(
      ProveGguf(path, request.type, generator, written, text, report));
  for (const std::string& note : written.notes) report->Note(note);
  return WriteWholeFile(to + "/Modelfile",
                        ModelfileText("model.gguf", *generator.tokenizer));
}

absl::Status CheckFlags(const ExportOptions& options) {
  if (options.format != "gguf") {
    for (const auto& [name, value] : {std::make_pair("--type", options.type),
                                      std::make_pair("--pre", options.pre),
                                      std::make_pair("--text", options.text)}) {
      if (!value.empty()) {
        return FieldError(name, "is about GGUF: add --format=gguf");
      }
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string model,
                           FinishedModel(options.model));
  if (options.adapter.folder.empty()) return absl::OkStatus();
  if (PathExists(model + "/adapter_config.json") &&
      !PathExists(model + "/config.json")) {
    return FieldError(
        "--adapter", absl::StrCat("is for a base, and ", options.model,
                                  " is an adapter itself: leave --adapter out, "
                                  "or name the base in its place"));
  }
  return FinishedModel(options.adapter.folder).status();
}

// Tells which files there are.
absl::Status TellFiles(const std::string& folder, ExportReport* report) {
  std::error_code error;
  Json files = Json::object();
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error)) {
    if (!at->is_regular_file(error)) continue;
    const auto size = static_cast<int64_t>(at->file_size(error));
    files[at->path().lexically_relative(folder).string()] = size;
    bytes += size;
  }
  if (error) return WriteError(folder, error.value());
  const std::string text =
      absl::StrCat(files.size(), " of ", ShortBytes(bytes));
  report->Tell("files", text, std::move(files));
  report->facts["bytes"] = bytes;
  return absl::OkStatus();
}

// Writes and compares the folder `to`.
absl::Status Make(const ModelSources& sources, const std::string& to,
                  const ExportOptions& options, ExportReport* report) {
  CAPSTAN_RETURN_IF_ERROR(options.format == "gguf"
                              ? ExportGguf(sources, to, options, report)
                              : ExportFolder(sources, to, options, report));
  CAPSTAN_RETURN_IF_ERROR(TellFiles(to, report));
  return SyncFolderAndFiles(to);
}

absl::StatusOr<int> Export(const ExportOptions& options) {
  at::set_num_threads(AvailableCores());
  const at::NoGradGuard no_grad;
  std::string output = FromCaller(options.output);
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  CAPSTAN_RETURN_IF_ERROR(CheckOutput(output));
  CAPSTAN_RETURN_IF_ERROR(CheckFlags(options));
  PluginHost host(AllFromCaller(options.plugin_path));
  CAPSTAN_ASSIGN_OR_RETURN(
      const ModelSources sources,
      FindSources(options.model, options.adapter, DefaultConfigContext(&host),
                  RunFoldersHere()));
  if (options.format == "adapter" && sources.adapter.empty()) {
    return FieldError("--format", "there is no adapter to export");
  }
  std::string parent = fs::path(output).parent_path().string();
  if (parent.empty()) parent = ".";
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(parent));
  std::string temporary = HiddenSibling(output, "XXXXXX");
  if (mkdtemp(&temporary[0]) == nullptr) return WriteError(output, errno);
  const init::Undo remove([&] { RemoveTree(temporary).IgnoreError(); });
  // Notes have its name.
  const std::string written =
      temporary + "/" + fs::path(output).filename().string();
  ExportReport report;
  report.Tell("output", options.output, options.output);
  report.Tell("format", options.format, options.format);
  const absl::Status made = Make(sources, written, options, &report);
  if (!made.ok()) {
    // The folder that is meant, as the other is gone by then.
    return WithMessage(
        made, absl::StrReplaceAll(made.message(), {{written, output}}));
  }
  // Replaces no folder but an empty one.
  if (std::rename(written.c_str(), output.c_str()) != 0) {
    return WriteError(output, errno);
  }
  CAPSTAN_RETURN_IF_ERROR(SyncPath(parent));
  std::cout << (options.json ? JsonText(report.facts, 2) + "\n"
                             : PrintableText(TableText(report.rows)));
  return 0;
}

void AddFlags(Flags& flags, ExportOptions* options) {
  flags
      .Add(
          "model", &options->model,
          "A run's folder (runs/NAME), a Hugging Face folder, or a PEFT folder")
      .Type("RUN|FOLDER")
      .Required();
  flags.Add("--output", &options->output, "The folder to write")
      .Type("FOLDER")
      .Required();
  flags
      .Add("--format", &options->format,
           "hf (a whole model, an adapter merged), adapter (PEFT's files), or "
           "gguf (model.gguf, for llama.cpp, and a Modelfile, for Ollama)")
      .ShowDefault()
      .Check([](const std::string& value) {
        return value == "hf" || value == "adapter" || value == "gguf"
                   ? std::string()
                   : std::string("is hf, adapter or gguf");
      });
  const std::string types = absl::StrJoin(GgufFileTypes(), ", ");
  flags
      .Add("--type", &options->type,
           "Of a GGUF file's matrices: F32, F16 (default), BF16, Q8_0, Q6_K, "
           "Q5_K_M, Q4_K_M or Q4_0")
      .Type("TYPE")
      .Check([types](const std::string& value) {
        for (const std::string& type : GgufFileTypes()) {
          if (value == type) return std::string();
        }
        return absl::StrCat("is one of ", types);
      });
  AddAdapterFlags(flags, &options->adapter);
  flags
      .Add(
          "--pre", &options->pre,
          "llama.cpp's name for how the tokenizer splits words, where it isn't "
          "found")
      .Type("NAME");
  flags
      .Add("--text", &options->text,
           "A file with text to compare the GGUF file's model on; default: a "
           "few sentences")
      .Type("FILE");
  flags.Add("--json", &options->json, "Print JSON, for programs");
  AddPluginPath(flags, &options->plugin_path);
}

const RegisterFunction<ExportOptions> export_command("export", AddFlags,
                                                     Export);

}  // namespace
}  // namespace capstan
