// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/run_sweep.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/compare/comparison.h"
#include "desk/compare/sweep.h"
#include "desk/compare/sweep_report.h"
#include "desk/compare/trainer_child.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

// What the sweep's runs need of the machine.
struct Needs {
  int ranks = 1;      // of the run with most
  int64_t bytes = 0;  // of a rank's tensors, as planned
};

// Creates all parts of a run, as it will itself.
absl::Status LookAt(const SweepPoint& point, const SweepRun& run,
                    const SweepCall& call, Needs* needs, Sweep* sweep) {
  RunOptions options;
  options.config_text = PrintConfig(run.config);
  options.plugin_path = call.plugin_path;
  const absl::StatusOr<std::unique_ptr<Prepared>> prepared = Prepare(options);
  if (!prepared.ok()) return Annotate(prepared.status(), point.Label());
  const TrainJob& job = (*prepared)->job;
  const Train& train = job.loaded.config.train();
  needs->ranks = std::max(needs->ranks, (*prepared)->processes);
  needs->bytes = std::max(needs->bytes, Total(job.memory.at_peak));
  sweep->max_steps = std::max(sweep->max_steps, train.max_steps());
  if (!sweep->metric.empty()) return absl::OkStatus();
  sweep->metric =
      job.parts.evaluates() && train.eval_every() > 0 ? "eval_loss" : "loss";
  return absl::OkStatus();
}

// How many runs may train at once.
int AtOnce(const CompareConfig::Sweep& config, const Needs& needs, int gpus,
           int runs) {
  const int devices = gpus > 0 ? gpus : AvailableCores();
  int most = std::clamp(devices / needs.ranks, 1, runs);
  if (config.most_at_once() > 0) most = std::min(most, config.most_at_once());
  // On GPUs each has its own.
  while (gpus == 0 && most > 1 &&
         MemoryBudget(/*on_gpu=*/false, most * needs.ranks) < needs.bytes) {
    --most;
  }
  return most;
}

// The variables by which runs at once share the machine.
std::vector<std::vector<std::string>> PlacesOf(int at_once, int ranks,
                                               int gpus) {
  std::vector<std::vector<std::string>> places(at_once);
  if (at_once == 1) return places;
  if (gpus == 0) {
    const int threads = std::max(1, AvailableCores() / (at_once * ranks));
    for (auto& place : places) {
      place.push_back(absl::StrCat("OMP_NUM_THREADS=", threads));
    }
    return places;
  }
  std::vector<std::string> ids;
  if (const char* const visible = getenv("CUDA_VISIBLE_DEVICES")) {
    ids = absl::StrSplit(visible, ',', absl::SkipWhitespace());
  }
  for (int i = static_cast<int>(ids.size()); i < gpus; ++i) {
    ids.push_back(absl::StrCat(i));
  }
  for (int i = 0; i < at_once; ++i) {
    places[i].push_back(
        absl::StrCat("CUDA_VISIBLE_DEVICES=",
                     absl::StrJoin(ids.begin() + i * ranks,
                                   ids.begin() + (i + 1) * ranks, ",")));
  }
  return places;
}

constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();

class SweepRunner {
 public:
  SweepRunner(Sweep* sweep, const SweepCall& call, std::string folder,
              std::vector<std::vector<std::string>> places)
      : sweep_(*sweep),
        call_(call),
        folder_(std::move(folder)),
        places_(std::move(places)) {}

  // Trains the runs of these points up to `step`. Returns the signal that
  // stopped them, or 0.
  absl::StatusOr<int> TrainUpTo(int64_t step,
                                const std::vector<size_t>& points) {
    std::vector<TrainerJob> jobs;
    under_way_.clear();
    for (const size_t point : points) {
      for (SweepRun& run : sweep_.points[point].runs) {
        if (run.status == SweepRun::Status::kFailed) continue;
        CAPSTAN_ASSIGN_OR_RETURN(const bool goes_on, Begin(step, &run));
        if (!goes_on) continue;
        under_way_.push_back({&run, absl::StrCat(sweep_.points[point].Label(),
                                                 " seed ", run.seed)});
        jobs.push_back(JobOf(step, run));
      }
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        const int stopped,
        RunTrainers(
            jobs, places_,
            [&](size_t job, const ChildEnd& end, bool stopped) {
              under_way_[job].ended = true;
              End(step, end, stopped, job);
            },
            [&] { ShowProgress(); }));
    for (const size_t point : points) {
      Summarize(sweep_.lower_is_better, &sweep_.points[point]);
    }
    return stopped;
  }

 private:
  struct UnderWay {
    SweepRun* run = nullptr;
    std::string settings;
    bool ended = false;
  };

  // "run 3 of 8  learning_rate=1e-3 seed 2"
  std::string NameOf(size_t job) const {
    return absl::StrCat("run ", job + 1, " of ", under_way_.size(), "  ",
                        under_way_[job].settings);
  }

  // Of several runs at once, of the first.
  void ShowProgress() {
    const auto goes_on =
        std::find_if(under_way_.begin(), under_way_.end(),
                     [](const UnderWay& run) { return !run.ended; });
    if (goes_on == under_way_.end()) return;
    const size_t job = goes_on - under_way_.begin();
    const std::string path = FolderOf(*goes_on->run) + "/metrics.jsonl";
    if (followed_path_ != path) {
      followed_path_ = path;
      followed_.emplace(path);
    }
    const int64_t step = followed_->Poll();
    const auto ended =
        std::count_if(under_way_.begin(), under_way_.end(),
                      [](const UnderWay& run) { return run.ended; });
    const double part =
        static_cast<double>(step) /
        static_cast<double>(std::max<int64_t>(sweep_.max_steps, 1));
    const absl::optional<double> loss = followed_->loss();
    // What a narrow terminal cuts comes last.
    bar_.Show((static_cast<double>(ended) + std::min(part, 1.0)) /
                  static_cast<double>(under_way_.size()),
              absl::StrCat(
                  job + 1, "/", under_way_.size(),
                  loss.has_value() ? absl::StrFormat("  loss %.4f", *loss) : "",
                  "  ", under_way_[job].settings));
  }

  std::string FolderOf(const SweepRun& run) const {
    return absl::StrCat(folder_, "/runs/", run.id);
  }

  RungFollower RungOf(int64_t step, const SweepRun& run) const {
    return RungFollower(FolderOf(run), sweep_.metric, step,
                        run.config.train().eval_every());
  }

  // Whether the run has to train to get there. One that is there with other
  // settings is an error: it is never overwritten.
  absl::StatusOr<bool> Begin(int64_t step, SweepRun* run) {
    const std::string folder = FolderOf(*run);
    run->config.set_output_dir(folder);
    const std::string config = PrintConfig(run->config);
    const std::string path = folder + "/run.pbtxt";
    const absl::StatusOr<std::string> ran = ReadWholeFile(path);
    if (ran.ok() && *ran != config) {
      return absl::FailedPreconditionError(
          absl::StrCat("--resume: ", folder,
                       " was trained with other settings than now (its "
                       "run.pbtxt): go on with those, or in another folder"));
    }
    const bool completed = CompletedSteps(folder).has_value();
    if (!completed && WholeCheckpoints(folder).empty()) {
      // What was killed before it had saved begins anew.
      CAPSTAN_RETURN_IF_ERROR(RemoveTree(folder));
      CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
      CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(path, config));
    }
    if (!completed && !RungOf(step, *run).Reached()) return true;
    Measure(step, run);
    return false;
  }

  TrainerJob JobOf(int64_t step, const SweepRun& run) const {
    const std::string folder = FolderOf(run);
    TrainerJob job;
    job.args = {"train", absl::StrCat("--config=", folder, "/run.pbtxt")};
    for (const std::string& path : call_.plugin_path) {
      job.args.push_back("--plugin_path=" + path);
    }
    job.log_path = folder + "/output.txt";
    if (step == kToTheEnd) return job;
    auto rung = std::make_shared<RungFollower>(RungOf(step, run));
    job.enough = [rung] { return rung->Reached(); };
    return job;
  }

  void Measure(int64_t step, SweepRun* run) const {
    const std::string folder = FolderOf(*run);
    const absl::optional<int64_t> completed = CompletedSteps(folder);
    MetricsFollower metrics(folder + "/metrics.jsonl");
    run->steps = completed.value_or(metrics.Poll());
    run->status = completed.has_value() ? SweepRun::Status::kCompleted
                                        : SweepRun::Status::kStopped;
    run->value = MetricAt(folder, sweep_.metric, std::min(step, run->steps));
  }

  // `stopped`: as the whole sweep is, which can be resumed.
  void End(int64_t step, const ChildEnd& end, bool stopped, size_t job) const {
    SweepRun* const run = under_way_[job].run;
    Measure(step, run);
    if (!stopped && !end.ok() && run->status != SweepRun::Status::kCompleted &&
        !RungOf(step, *run).Reached()) {
      const absl::StatusOr<std::string> output =
          ReadWholeFile(FolderOf(*run) + "/output.txt");
      run->status = SweepRun::Status::kFailed;
      run->reason = WhyItFailed(end, output.value_or(""));
      run->value = absl::nullopt;
    }
    const Console console(STDOUT_FILENO);
    const std::string line = absl::StrCat(
        NameOf(job), "  ",
        stopped && run->status == SweepRun::Status::kStopped ? "stopped at "
                                                             : "",
        run->status == SweepRun::Status::kFailed
            ? absl::StrCat("failed: ", run->reason)
            : absl::StrFormat("step %d  %s %s", run->steps, sweep_.metric,
                              run->value.has_value()
                                  ? absl::StrFormat("%.4f", *run->value)
                                  : "unknown"));
    console.Write(absl::StrCat(console.terminal() ? "\r\x1b[K" : "",
                               PrintableText(line), "\n"));
  }

  Sweep& sweep_;
  const SweepCall& call_;
  const std::string folder_;
  const std::vector<std::vector<std::string>> places_;
  std::vector<UnderWay> under_way_;  // by job
  std::string followed_path_;
  absl::optional<MetricsFollower> followed_;
  WorkBar bar_{"sweeping", STDOUT_FILENO};
};

// Trains all points, or, with halving, those that are left, rung by rung, as
// long as any is. Returns the signal that stopped it, or 0.
absl::StatusOr<int> TrainAll(const CompareConfig::Sweep& config,
                             SweepRunner* runner, Sweep* sweep) {
  std::vector<size_t> alive(sweep->points.size());
  for (size_t i = 0; i < alive.size(); ++i) alive[i] = i;
  std::vector<int64_t> rungs;
  if (config.has_halving()) rungs = Rungs(config.halving(), sweep->max_steps);
  const int factor =
      config.halving().factor() == 0 ? 2 : config.halving().factor();
  for (const int64_t step : rungs) {
    if (alive.size() <= 1) break;
    CAPSTAN_ASSIGN_OR_RETURN(const int stopped, runner->TrainUpTo(step, alive));
    if (stopped != 0) return stopped;
    const std::vector<size_t> left = Survivors(*sweep, alive, factor);
    for (const size_t i : alive) {
      if (std::find(left.begin(), left.end(), i) != left.end()) continue;
      sweep->points[i].ended_at = step;
    }
    alive = left;
  }
  return runner->TrainUpTo(kToTheEnd, alive);
}

absl::Status CheckHalving(const CompareConfig::Sweep& config,
                          const Sweep& sweep) {
  if (!config.has_halving()) return absl::OkStatus();
  if (sweep.max_steps == 0) {
    return FieldError("sweep.halving",
                      "counts steps, and the run has epochs: set "
                      "train.max_steps");
  }
  if (!absl::StartsWith(sweep.metric, "eval_")) return absl::OkStatus();
  for (const SweepPoint& point : sweep.points) {
    const Train& train = point.runs[0].config.train();
    if (train.eval_every() > 0 &&
        train.eval_every() <= config.halving().first_steps()) {
      continue;
    }
    return FieldError(
        "sweep.halving.first_steps",
        absl::StrCat("is ", config.halving().first_steps(),
                     ", but the first evaluation is after ",
                     train.eval_every() == 0
                         ? "the last step"
                         : absl::StrCat(train.eval_every(), " steps"),
                     ": set train.eval_every, or metric: \"loss\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> RunSweep(const LoadedCompare& loaded,
                             const ConfigContext& context,
                             const SweepCall& call) {
  const CompareConfig::Sweep& config = loaded.config.sweep();
  Sweep sweep;
  sweep.name = loaded.config.name();
  sweep.time =
      absl::FormatTime("%Y-%m-%d %H:%M", absl::Now(), absl::LocalTimeZone());
  sweep.metric = config.metric();
  sweep.config_text = PrintConfig(loaded.config);
  sweep.shared_config_text = PrintConfig(loaded.shared.config);
  absl::StatusOr<std::vector<SweepPoint>> points = PointsOf(loaded, context);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(points.status(), ""));
  sweep.points = *std::move(points);
  Needs needs;
  int runs = 0;
  for (const SweepPoint& point : sweep.points) {
    runs += static_cast<int>(point.runs.size());
    CAPSTAN_RETURN_IF_ERROR(LookAt(point, point.runs[0], call, &needs, &sweep));
  }
  sweep.lower_is_better = LowerIsBetter(sweep.metric);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckHalving(config, sweep), ""));
  sweep.at_once = AtOnce(config, needs, call.gpus, runs);
  const int devices = call.gpus > 0 ? call.gpus : AvailableCores();
  sweep.device = absl::StrCat(devices, call.gpus > 0 ? " GPU" : " CPU core",
                              devices == 1 ? "" : "s");
  CAPSTAN_ASSIGN_OR_RETURN(const std::string folder, call.prepare_folder());
  std::cout << PrintableText(absl::StrCat(
                   "Capstan sweeps: ", sweep.name, "\n",
                   TableText({{"points", absl::StrCat(sweep.points.size())},
                              {"runs", absl::StrCat(runs, ", ", sweep.at_once,
                                                    " at once")},
                              {"ranked by", sweep.metric},
                              {"device", sweep.device},
                              {"output", folder}})))
            << std::endl;
  {
    SweepRunner runner(&sweep, call, folder,
                       PlacesOf(sweep.at_once, needs.ranks, call.gpus));
    CAPSTAN_ASSIGN_OR_RETURN(const int stopped,
                             TrainAll(config, &runner, &sweep));
    if (stopped != 0) return call.interrupted(folder, stopped);
  }
  CAPSTAN_RETURN_IF_ERROR(WriteSweepReports(sweep, folder));
  std::cout << PrintableText(absl::StrCat(
                   "\n", SweepText(sweep), "\n",
                   TableText({{"report", folder + "/report.html"}})))
            << std::flush;
  const bool any = std::any_of(
      sweep.points.begin(), sweep.points.end(), [](const SweepPoint& point) {
        return point.ended_at == 0 && point.mean.has_value();
      });
  if (any) return 0;
  return absl::FailedPreconditionError(absl::StrCat(
      config.has_halving() ? "no point that went on has a " : "no point has a ",
      sweep.metric, " with all its seeds: see ", folder, "/report.md"));
}

}  // namespace capstan
