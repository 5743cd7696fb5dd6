// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/import/draft.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan::import {
namespace {

struct ImportOptions {
  std::vector<std::string> files;
  std::string output;
  bool check = false;
  bool force = false;
};

absl::StatusOr<int> RunImport(const ImportOptions& options) {
  if (options.files.empty()) {
    return absl::InvalidArgumentError(
        "import: name the files: `trainer import FILE.. --output=run.pbtxt`");
  }
  for (const std::string& file : options.files) {
    if (file.substr(0, 1) == "-") {
      return absl::InvalidArgumentError(
          absl::StrCat("import: no flag ", file, "; --help lists them"));
    }
  }
  if (options.output.empty() && !options.check) {
    return absl::InvalidArgumentError(
        "import: --output=FILE says where the config goes; --check only looks");
  }
  const std::string output =
      FromCaller(options.output.empty() ? "." : options.output);
  if (!options.check && PathExists(output) && !options.force) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--output=", options.output, ": exists; --force overwrites it"));
  }
  const std::filesystem::path folder =
      options.check ? std::filesystem::path(output)
                    : std::filesystem::path(output).parent_path();
  CAPSTAN_ASSIGN_OR_RETURN(
      const Draft draft,
      Import(AllFromCaller(options.files),
             std::filesystem::absolute(folder).lexically_normal().string()));
  for (const std::string& file : draft.files) {
    std::error_code error;
    if (!options.check && std::filesystem::equivalent(file, output, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--output=", options.output, ": is ", file,
                       ", whose settings are read; name another file"));
    }
  }
  std::cout << PrintableText(
      TableText(draft, Console(STDOUT_FILENO).Columns()));
  const bool loses = draft.loses();
  if (loses) {
    std::cout << "what is marked as differs or lost changes what is trained\n";
  }
  if (options.check) return loses ? 1 : 0;
  CAPSTAN_RETURN_IF_ERROR(ReplaceFile(
      output,
      ConfigText(draft,
                 absl::StrCat("# Made by `trainer import` from settings of ",
                              absl::StrJoin(draft.peers, ", "), ".\n"))));
  std::cout << "wrote " << PrintableText(options.output)
            << (draft.Has("model") ? "; next: trainer check --config="
                                   : ", only of how the run is launched; next: "
                                     "trainer check --config=RUN --config=")
            << PrintableText(options.output) << std::endl;
  return 0;
}

void AddImportFlags(Flags& flags, ImportOptions* options) {
  flags.AddRest(&options->files);
  flags.Add("--output", &options->output, "The config to write").Type("FILE");
  flags.Add("--check", &options->check,
            "Only show what becomes of each setting; exit code 1 if something "
            "that changes the model is lost");
  flags.Add("--force", &options->force, "Overwrite --output if it exists");
}

const RegisterFunction<ImportOptions> import_settings("import", AddImportFlags,
                                                      RunImport);

}  // namespace
}  // namespace capstan::import
