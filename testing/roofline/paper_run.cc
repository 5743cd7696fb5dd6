// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/paper_run.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "cluster/comm/agree.h"
#include "cluster/launch/rank_info.h"
#include "testing/roofline/paper_group.h"
#include "trainer/session/rank_run.h"
#include "trainer/session/set_up.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kFolderVariable[] = "CAPSTAN_ROOFLINE_FOLDER";
constexpr char kLibrariesVariable[] = "CAPSTAN_STANDIN_LIBRARIES";

// Runs the program with its output in a file.
absl::StatusOr<ChildEnd> RunInto(const std::string& output, Program program) {
  const int file =
      open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return WriteError(output, errno);
  program.output = program.errors = file;
  absl::StatusOr<ChildEnd> end = RunProgram(program);
  close(file);
  return end;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<std::vector<TracedStep>> StepsIn(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!absl::EndsWith(name, ".trace.jsonl")) continue;
    std::ifstream file(entry.path());
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<TracedStep> steps, ReadTrace(file));
    if (!steps.empty()) return steps;
  }
  return absl::InternalError(
      "the run on paper has traced no step: the stand-in devices and the "
      "trainer may be of other builds");
}

}  // namespace

absl::Status RunOnPaper(TrainJob* job, int ranks, const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(folder, " can't be made: ", error.message()));
  }
  SetOnPaper();
  job->folder.path = folder;
  RankInfo rank;
  rank.world_size = rank.local_world_size = ranks;
  rank.on_paper = CreatePaperGroup;
  const bool graphs = job->loaded.config.train().cuda_graphs();
  const int64_t steps = graphs ? kPaperStepsWithGraphs : kPaperSteps;
  // Without evaluations, and with only those files that a run begins with.
  RankRun run(job, rank);
  return CatchAll([&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(SetUp(&run).status());
    for (int64_t i = 0; i < steps && run.session.GoesOn(); ++i) {
      CAPSTAN_RETURN_IF_ERROR(run.step.Run(*run.loader));
    }
    return run.step.CatchUp();
  });
}

std::string PaperFolder() {
  const char* folder = getenv(kFolderVariable);
  return folder == nullptr ? "" : folder;
}

absl::StatusOr<StandIn> FindStandIn() {
  const auto set = [](const char* variable) -> std::string {
    const char* value = getenv(variable);
    return value == nullptr ? "" : value;
  };
  StandIn found = {set("CAPSTAN_STANDIN_RUN"), set(kLibrariesVariable)};
  // In Bazel's output tree; among this program's runfiles; in those that are
  // the working folder, or in the source tree.
  const std::vector<std::string> folders = {
      ExecutableFolder() + "/../standin",
      ExecutableFolder() + "/roofline.runfiles/capstan/testing/standin",
      "testing/standin"};
  for (const std::string& folder : folders) {
    const std::string script = folder + "/run.sh", libraries = folder + "/lib";
    if (found.script.empty() && access(script.c_str(), X_OK) == 0) {
      found.script = script;
    }
    if (found.libraries.empty() &&
        access((libraries + "/libcudart.so.13").c_str(), R_OK) == 0) {
      found.libraries = libraries;
    }
  }
  if (!found.script.empty() && !found.libraries.empty()) return found;
  return absl::FailedPreconditionError(absl::StrCat(
      "roofline finds no stand-in devices (", folders.back(),
      found.script.empty() ? "/run.sh" : "/lib",
      "): build //testing/standin:libraries and call it from the source tree, "
      "or name their folder in CAPSTAN_STANDIN_LIBRARIES and run.sh in "
      "CAPSTAN_STANDIN_RUN"));
}

// The most that there may be (testing/standin); the one rank uses the first.
constexpr int kStandInDevices = 16;

absl::StatusOr<std::vector<TracedStep>> TraceRun(
    const std::vector<std::string>& command, const std::string& gpu, int gpus) {
  CAPSTAN_ASSIGN_OR_RETURN(const StandIn stand_in, FindStandIn());
  const ScratchFolder scratch;  // for the trace and the run's files
  CAPSTAN_RETURN_IF_ERROR(scratch.status());
  const std::string& folder = scratch.path();
  Program run;
  run.words = {stand_in.script};
  run.words.insert(run.words.end(), command.begin(), command.end());
  // It chooses among real GPUs: CUDA_VISIBLE_DEVICES. What doesn't fit must
  // still be traced; the plan says that it doesn't.
  run.variables = {"CUDA_VISIBLE_DEVICES",
                   // Else LibTorch waits for the 129th rank, which makes an id
                   // of its own for the communicator.
                   "TORCH_NCCL_RANKS_PER_ROOT=1000000",
                   absl::StrCat("CAPSTAN_STANDIN=paper,memory=2048G,gpus=",
                                std::min(gpus, kStandInDevices), ",gpu=", gpu,
                                ",trace=", folder),
                   absl::StrCat(kLibrariesVariable, "=", stand_in.libraries),
                   absl::StrCat(kFolderVariable, "=", folder)};
  run.inherits_descriptors = true;
  const std::string output = folder + "/output.txt";
  CAPSTAN_ASSIGN_OR_RETURN(const ChildEnd end, RunInto(output, run));
  if (!end.ok()) {
    std::cerr << Contents(output);
    return absl::InternalError(
        end.signal > 0 ? absl::StrCat("the run on paper died of ", end.Text(),
                                      "; its output is above")
                       : "the run on paper failed; its output is above");
  }
  return StepsIn(folder);
}

}  // namespace capstan
