// SPDX-License-Identifier: Apache-2.0
//
// compare: runs each combination of the axes in turn in a child process and
// reports the differences; or a sweep (run_sweep.h).
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/machine.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/place.h"
#include "cluster/launch/signals.h"
#include "desk/compare/blame.h"
#include "desk/compare/compare_config.h"
#include "desk/compare/comparison.h"
#include "desk/compare/report.h"
#include "desk/compare/run_sweep.h"
#include "desk/compare/trainer_child.h"
#include "desk/run_folder/run_record.h"
#include "host/config/load_config.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/session/output_folder.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Fits "bf16 on 2 ranks" and a strategy's name.
constexpr int kLabelWidth = 28;

// Progress on standard output: a line per completed run, below them a bar over
// the steps of all runs. One thread.
class CompareProgress {
 public:
  CompareProgress(int runs, int64_t steps_a_run)
      : runs_(runs), steps_a_run_(steps_a_run) {}

  void BeginRun() { run_start_ = bar_.Seconds(); }
  // The newest step of `run`.
  void Step(const ComparedRun& run, int64_t step) {
    bar_.Show(static_cast<double>(ended_ * steps_a_run_ + step) /
                  static_cast<double>(runs_ * steps_a_run_),
              absl::StrCat("run ", ended_ + 1, "/", runs_, " ", run.Label(),
                           ", step ", step));
  }
  // Call once `run` has its status and measurements.
  void EndRun(const ComparedRun& run);

 private:
  const int runs_;
  const int64_t steps_a_run_;
  const Console console_{STDOUT_FILENO};
  WorkBar bar_{"comparing", STDOUT_FILENO};
  double run_start_ = 0.0;
  int ended_ = 0;
};

void CompareProgress::EndRun(const ComparedRun& run) {
  ++ended_;
  std::string line =
      absl::StrFormat("%*d/%d  %-*s  ", absl::StrCat(runs_).size(), ended_,
                      runs_, kLabelWidth, run.Label());
  if (run.status == ComparedRun::Status::kCompleted) {
    absl::StrAppendFormat(
        &line, "final loss %.4f  %s %s/s  %s", run.measured.loss.back(),
        WithCommas(std::llround(run.measured.tokens_per_second)),
        run.measured.unit, ShortDuration(bar_.Seconds() - run_start_));
  } else {
    absl::StrAppend(&line, "failed: ", run.reason);
  }
  console_.Write(absl::StrCat(console_.terminal() ? "\r\x1b[K" : "",
                              PrintableText(line), "\n"));
}

struct CompareOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string output_dir;  // empty: from the config
  // Skips runs already completed in output_dir.
  bool resume = false;
  // Finds where runs part from their references.
  bool blame = false;
  // Instead of `config`: finished runs' folders, the second the reference.
  std::vector<std::string> runs;
  std::vector<std::string> plugin_path;
};

// Everything known before the first run.
struct PreparedCompare {
  Comparison comparison;
  std::vector<Combination> combinations;
  std::vector<std::string> plugin_path;
  std::string folder;
  std::vector<std::string> notes;
};

// Creates the report's folder, which must hold no report and, unless resumed,
// no runs.
absl::StatusOr<std::string> PrepareFolder(const CompareOptions& options,
                                          const LoadedCompare& loaded,
                                          const ConfigContext& context) {
  RunConfig where;
  where.set_name(loaded.config.name());
  where.set_output_dir(options.output_dir.empty()
                           ? loaded.config.output_dir()
                           : FromCaller(options.output_dir));
  const fs::path folder = where.output_dir();
  if (options.resume && where.output_dir().empty()) {
    return absl::InvalidArgumentError(
        "--resume: name the folder of the comparison with --output_dir");
  }
  for (const char* name : {"report.json", "runs"}) {
    if (options.resume && name == std::string("runs")) continue;
    if (!where.output_dir().empty() && PathExists((folder / name).string())) {
      return absl::AlreadyExistsError(
          absl::StrCat("output_dir: ", folder.string(),
                       " already holds a comparison; name another folder",
                       PathExists((folder / "report.json").string())
                           ? ""
                           : ", or go on with it with --resume"));
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const HeldFolder held,
      PrepareOutputFolder(where, context.workspace_folder));
  return held.path;
}

absl::Status CheckAlone(int gpus) {
  CAPSTAN_ASSIGN_OR_RETURN(const Place place,
                           FindPlace(LaunchSettings(), gpus));
  if (place.Alone()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "compare starts its own ranks, on one host, but is one of "
      "several (",
      PlaceText(place.info), "): start it once, without RANK and WORLD_SIZE"));
}

absl::StatusOr<PreparedCompare> Prepare(const CompareOptions& options,
                                        const LoadedCompare& loaded,
                                        const ConfigContext& context,
                                        int gpus) {
  PreparedCompare prepared;
  prepared.plugin_path = AllFromCaller(options.plugin_path);
  CAPSTAN_ASSIGN_OR_RETURN(prepared.combinations,
                           CrossAxes(loaded, gpus, *context.host));
  Comparison& comparison = prepared.comparison;
  comparison.precisions = ListPrecisions(loaded.config);
  prepared.notes = loaded.shared.notes;
  comparison.name = loaded.config.name();
  comparison.time =
      absl::FormatTime("%Y-%m-%d %H:%M", absl::Now(), absl::LocalTimeZone());
  comparison.config_text = PrintConfig(loaded.config);
  comparison.shared_config_text = PrintConfig(loaded.shared.config);
  comparison.max_steps = loaded.shared.config.train().max_steps();
  comparison.global_batch_size =
      loaded.shared.config.batch().global_batch_size();
  const int devices = gpus > 0 ? gpus : AvailableCores();
  comparison.device = absl::StrCat(devices, gpus > 0 ? " GPU" : " CPU core",
                                   devices == 1 ? "" : "s");
  bool digests = options.blame;
  for (const Combination& combination : prepared.combinations) {
    digests = digests || combination.run.bounds.bit_identical;
  }
  for (Combination& combination : prepared.combinations) {
    if (!digests) break;
    combination.config.mutable_train()->mutable_digests()->set_write(true);
  }
  CAPSTAN_ASSIGN_OR_RETURN(prepared.folder,
                           PrepareFolder(options, loaded, context));
  return prepared;
}

// Whether the folder holds this run, completed. Another completed run is an
// error: it is never overwritten.
absl::StatusOr<bool> IsDone(const std::string& folder,
                            const std::string& config_path,
                            const std::string& config) {
  if (!CompletedSteps(folder).has_value()) return false;
  const absl::StatusOr<std::string> ran = ReadWholeFile(config_path);
  if (ran.ok() && *ran == config) return true;
  return absl::FailedPreconditionError(
      absl::StrCat("--resume: ", folder,
                   " is completed, with other settings than now (its "
                   "run.pbtxt): compare with those, or in another folder"));
}

void Measure(const std::string& folder, int64_t max_steps, ComparedRun* run) {
  absl::StatusOr<RunMeasurements> measured =
      ReadMeasurements(folder, max_steps);
  if (measured.ok()) {
    run->measured = *std::move(measured);
    run->status = ComparedRun::Status::kCompleted;
  } else {
    run->status = ComparedRun::Status::kFailed;
    run->reason = std::string(measured.status().message());
  }
}

// Runs one combination and stores the result in its `run`. Returns the signal
// that stopped it, or 0.
absl::StatusOr<int> RunOne(const PreparedCompare& prepared,
                           Combination* combination,
                           CompareProgress* progress) {
  ComparedRun& run = combination->run;
  const std::string folder = absl::StrCat(prepared.folder, "/runs/", run.id);
  combination->config.set_output_dir(folder);
  const std::string config = PrintConfig(combination->config);
  const std::string config_path = folder + "/run.pbtxt";
  const std::string log_path = folder + "/output.txt";
  progress->BeginRun();
  CAPSTAN_ASSIGN_OR_RETURN(const bool done,
                           IsDone(folder, config_path, config));
  if (done) {
    Measure(folder, prepared.comparison.max_steps, &run);
    progress->EndRun(run);
    return 0;
  }
  // Discards a stopped run: its timings would be incomplete.
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(folder));
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(config_path, config));
  std::vector<std::string> args = {"train", "--config=" + config_path};
  for (const std::string& path : prepared.plugin_path) {
    args.push_back("--plugin_path=" + path);
  }
  MetricsFollower metrics(folder + "/metrics.jsonl");
  CAPSTAN_ASSIGN_OR_RETURN(const TrainerChildResult ended,
                           RunTrainerChild(args, log_path, [&] {
                             progress->Step(run, metrics.Poll());
                           }));
  if (ended.stop_signal != 0) return ended.stop_signal;
  if (ended.end.ok()) {
    Measure(folder, prepared.comparison.max_steps, &run);
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string output, ReadWholeFile(log_path));
    run.status = ComparedRun::Status::kFailed;
    run.reason = WhyItFailed(ended.end, output);
  }
  progress->EndRun(run);
  return 0;
}

void PrintPlan(const PreparedCompare& prepared, int runs) {
  const Comparison& comparison = prepared.comparison;
  std::string text = absl::StrCat(
      "Capstan compares: ", comparison.name, "\n",
      TableText(
          {{"runs", absl::StrCat(runs)},
           {"steps", absl::StrCat(comparison.max_steps, " each, of ",
                                  comparison.global_batch_size, " samples")},
           {"device", comparison.device},
           {"output", prepared.folder}}));
  for (const std::string& note : prepared.notes) {
    absl::StrAppend(&text, "  note: ", note, "\n");
  }
  for (const Combination& combination : prepared.combinations) {
    if (combination.run.status != ComparedRun::Status::kSkipped) continue;
    absl::StrAppend(&text, "  left out: ", combination.run.Label(), ": ",
                    combination.run.reason, "\n");
  }
  std::cout << PrintableText(text) << std::endl;
}

// The same run again, which keeps the tensor that differs; returns its folder.
absl::StatusOr<std::string> RunAgain(const PreparedCompare& prepared,
                                     const Combination& combination,
                                     const FirstDifference& where,
                                     const std::string& suffix,
                                     CompareProgress* progress) {
  Combination again = combination;
  again.run.id = combination.run.id + suffix;
  Digests* const digests = again.config.mutable_train()->mutable_digests();
  digests->set_keep_step(where.step);
  digests->add_keep(absl::StrCat(where.kind, "/", where.parameter));
  CAPSTAN_ASSIGN_OR_RETURN(const int stopped,
                           RunOne(prepared, &again, progress));
  if (stopped != 0) {
    return absl::CancelledError(absl::StrCat(
        SignalName(stopped), ": stopped during ", again.run.Label()));
  }
  if (again.run.status != ComparedRun::Status::kCompleted) {
    return absl::InternalError(absl::StrCat(
        again.run.Label(), " failed when it ran again: ", again.run.reason));
  }
  return absl::StrCat(prepared.folder, "/runs/", again.run.id);
}

// Where `combination`'s run parts from `reference`'s, for the user.
absl::StatusOr<std::string> Blame(const PreparedCompare& prepared,
                                  const Combination& combination,
                                  const Combination& reference,
                                  CompareProgress* progress) {
  const std::string runs = prepared.folder + "/runs/";
  const std::string label = combination.run.Label();
  CAPSTAN_ASSIGN_OR_RETURN(
      const absl::optional<FirstDifference> where,
      FindFirstDifference(runs + combination.run.id, runs + reference.run.id));
  if (!where.has_value()) {
    return absl::StrCat(label, ": identical to ", reference.run.Label(),
                        ": all weights, gradients and optimizer states of all "
                        "steps have the same bits\n");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string mine,
      RunAgain(prepared, combination, *where, "-blame", progress));
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string theirs,
      RunAgain(prepared, reference, *where,
               absl::StrCat("-blame-", combination.run.id), progress));
  CAPSTAN_ASSIGN_OR_RETURN(const TensorDifference tensor,
                           CompareKept(mine, theirs, *where));
  return BlameText(label, reference.run.Label(), *where, tensor);
}

// After Compare, which has named references. `combinations` are those of
// comparison.runs.
absl::Status BlameAll(PreparedCompare* prepared) {
  const Comparison& comparison = prepared->comparison;
  std::string text;
  for (size_t i = 0; i < comparison.runs.size(); ++i) {
    prepared->combinations[i].run = comparison.runs[i];
  }
  for (const Combination& combination : prepared->combinations) {
    const ComparedRun& run = combination.run;
    if (run.status != ComparedRun::Status::kCompleted ||
        run.reference.empty() || run.reference == run.id) {
      continue;
    }
    for (const Combination& reference : prepared->combinations) {
      if (reference.run.id != run.reference ||
          reference.run.status != ComparedRun::Status::kCompleted) {
        continue;
      }
      CompareProgress progress(2, comparison.max_steps);
      const absl::StatusOr<std::string> found =
          Blame(*prepared, combination, reference, &progress);
      if (absl::IsCancelled(found.status())) return found.status();
      absl::StrAppend(
          &text, found.ok() ? *found
                            : absl::StrCat(run.Label(), ": ",
                                           found.status().message(), "\n"));
    }
  }
  std::cout << "\n" << PrintableText(text);
  std::cout.flush();
  return WriteWholeFile(prepared->folder + "/blame.txt", text);
}

std::string DeltaText(const CurveDelta& delta, double bound) {
  return absl::StrCat(
      delta.max == 0.0 ? "0" : absl::StrFormat("%.1e", delta.max),
      absl::StrFormat(" of %.0e", bound));
}

void PrintResult(const Comparison& comparison, const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const ComparedPrecision& precision : comparison.precisions) {
    for (const ComparedRun& run : comparison.runs) {
      if (run.precision != precision.name || run.reference.empty()) continue;
      rows.emplace_back(
          run.Label(),
          run.id == run.reference ? "reference"
          : run.loss_delta.max == 0.0 && run.grad_norm_delta.max == 0.0
              ? "losses and gradient norms are identical"
              : absl::StrCat(
                    "loss ", DeltaText(run.loss_delta, run.bounds.loss),
                    ", gradient norm ",
                    DeltaText(run.grad_norm_delta, run.bounds.grad_norm)));
    }
  }
  std::cout << "\n"
            << (comparison.passed() ? "PASSED" : "FAILED")
            << ": greatest relative distances from the reference, and the "
               "bounds\n"
            << PrintableText(absl::StrCat(
                   TableText(rows), "\n",
                   TableText({{"report", folder + "/report.html"}})));
  std::cout.flush();
  for (const std::string& problem : comparison.problems) {
    std::cerr << "ERROR: " << PrintableText(problem) << "\n";
  }
}

int Interrupted(const CompareOptions& options, const std::string& folder,
                const std::string& during, int signal) {
  std::vector<std::string> words = ThisCall().words;
  if (!options.resume) words.push_back("--resume");
  if (options.output_dir.empty()) {
    words.push_back("--output_dir=" + folder);
  }
  std::cout.flush();
  std::cerr << PrintableText(absl::StrCat(
                   SignalName(signal), ": stopped during ", during,
                   "; there is no report yet, the runs so far are in ", folder,
                   "/runs; go on with: ", ShellText(words)))
            << std::endl;
  return 128 + signal;
}

void AddFlags(Flags& flags, CompareOptions* options) {
  flags
      .Add("config,--config", &options->config,
           "What to compare (protobuf text, "
           "desk/compare/compare_config.proto), or a run's config, which "
           "then trains for at most 50 steps under each strategy")
      .Type("FILE");
  AddSet(flags, &options->overrides,
         "Overrides one field of every run: train.max_steps=10");
  flags
      .Add("--output_dir", &options->output_dir,
           "Where the report and the runs go")
      .Type("FOLDER");
  flags.Add("--resume", &options->resume,
            "Go on with a comparison that was stopped, in --output_dir: runs "
            "that are done stay");
  flags.Add("--blame", &options->blame,
            "Name the first step, tensor and element in which a run's bits "
            "differ from its reference's; runs that differ run once more");
  flags
      .Add("--run", &options->runs,
           "With --blame, twice, instead of --config: a run's folder, and that "
           "of the run to compare it with, both trained with "
           "train.digests.write")
      .Type("FOLDER")
      .OneEach();
  AddPluginPath(flags, &options->plugin_path);
}

// For runs that are there. 1 if they differ.
absl::StatusOr<int> BlameRuns(const CompareOptions& options) {
  if (options.runs.size() != 2 || !options.blame || !options.config.empty()) {
    return absl::InvalidArgumentError(
        "--run: compare two runs that are there with --blame --run=FOLDER "
        "--run=REFERENCE, without --config");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                           FoldersOfRuns(options.runs));
  for (const std::string& folder : folders) {
    if (PathExists(folder + "/digests.jsonl")) continue;
    return absl::NotFoundError(absl::StrCat(
        folder,
        " has no digests.jsonl: train with --set train.digests.write=true"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<FirstDifference> where,
                           FindFirstDifference(folders[0], folders[1]));
  if (!where.has_value()) {
    std::cout << PrintableText(absl::StrCat(
        folders[0], ": identical to ", folders[1],
        ": all weights, gradients and optimizer states of the steps that both "
        "have\n"));
    return 0;
  }
  const absl::StatusOr<TensorDifference> tensor =
      CompareKept(folders[0], folders[1], *where);
  if (!tensor.ok() && !absl::IsNotFound(tensor.status())) {
    return tensor.status();
  }
  std::cout << PrintableText(
      tensor.ok() ? BlameText(folders[0], folders[1], *where, *tensor)
                  : BlameText(folders[0], folders[1], *where));
  return 1;
}

absl::StatusOr<int> CompareSweep(const CompareOptions& options,
                                 const LoadedCompare& loaded,
                                 const ConfigContext& context, int gpus) {
  if (options.blame) {
    return FieldError("--blame", "is for comparisons: a sweep's runs differ");
  }
  SweepCall call;
  call.gpus = gpus;
  call.plugin_path = AllFromCaller(options.plugin_path);
  call.prepare_folder = [&] { return PrepareFolder(options, loaded, context); };
  call.interrupted = [&](const std::string& folder, int signal) {
    return Interrupted(options, folder, "the sweep", signal);
  };
  return RunSweep(loaded, context, call);
}

absl::StatusOr<int> RunCompare(const CompareOptions& options) {
  if (!options.runs.empty()) return BlameRuns(options);
  if (options.config.empty()) {
    return absl::InvalidArgumentError(
        "--config is required; or, for two runs that are there, --blame "
        "--run=FOLDER --run=REFERENCE");
  }
  PluginHost host(AllFromCaller(options.plugin_path));
  const ConfigContext context = DefaultConfigContext(&host);
  CAPSTAN_ASSIGN_OR_RETURN(const int gpus, GpusOfRun());
  CAPSTAN_RETURN_IF_ERROR(CheckAlone(gpus));
  CAPSTAN_ASSIGN_OR_RETURN(
      const LoadedCompare loaded,
      LoadCompareConfig(options.config, options.overrides, context));
  if (loaded.config.has_sweep()) {
    return CompareSweep(options, loaded, context, gpus);
  }
  CAPSTAN_ASSIGN_OR_RETURN(PreparedCompare prepared,
                           Prepare(options, loaded, context, gpus));
  int runs = 0;
  for (const Combination& combination : prepared.combinations) {
    if (combination.run.status == ComparedRun::Status::kPending) ++runs;
  }
  PrintPlan(prepared, runs);
  Comparison& comparison = prepared.comparison;
  {
    CompareProgress progress(runs, comparison.max_steps);
    for (Combination& combination : prepared.combinations) {
      if (combination.run.status == ComparedRun::Status::kPending) {
        CAPSTAN_ASSIGN_OR_RETURN(const int stopped,
                                 RunOne(prepared, &combination, &progress));
        if (stopped != 0) {
          return Interrupted(options, prepared.folder, combination.run.Label(),
                             stopped);
        }
      }
      comparison.runs.push_back(std::move(combination.run));
    }
  }
  Compare(&comparison);
  CompareBits(prepared.folder + "/runs", &comparison);
  CAPSTAN_RETURN_IF_ERROR(WriteReports(comparison, prepared.folder));
  PrintResult(comparison, prepared.folder);
  if (options.blame) CAPSTAN_RETURN_IF_ERROR(BlameAll(&prepared));
  return comparison.passed() ? 0 : 1;
}

const RegisterFunction<CompareOptions> compare("compare", AddFlags, RunCompare);

}  // namespace
}  // namespace capstan
