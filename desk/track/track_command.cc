// SPDX-License-Identifier: Apache-2.0
//
// track: keeps trackers, monitoring and people up to runs, from beside them.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/signals.h"
#include "desk/http/server.h"
#include "desk/run_folder/run_record.h"
#include "desk/run_folder/step_aside.h"
#include "desk/track/sink.h"
#include "desk/track/tracker.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan::track {
namespace {

constexpr double kMostTurnSeconds = 1.0;
constexpr double kStopSeconds = 2.0;
// How long the last numbers wait for Prometheus to fetch them.
constexpr double kLastScrapeSeconds = 60.0;
constexpr char kDefaultProject[] = "capstan";
constexpr char kPrometheusType[] = "text/plain; version=0.0.4; charset=utf-8";

struct TrackOptions {
  std::vector<std::string> runs;
  std::string to;
  std::string url;
  std::string project;
  std::string file;
  std::string address = "127.0.0.1";
  absl::optional<int64_t> port;
  std::vector<std::string> alerts;
  std::string webhook;
  std::string command;
  double every = 5.0;
  double patience = 300.0;
};

// A target, what makes its sinks, and the variable that may name its project.
struct Target {
  const char* name;
  absl::StatusOr<std::unique_ptr<Sink>> (*make)(const SinkOptions&);
  const char* project;  // null: it has none
};

const Target kTargets[] = {
    {"mlflow", MakeMlflow, "MLFLOW_EXPERIMENT_NAME"},
    {"trackio", MakeTrackio, "TRACKIO_PROJECT"},
    {"wandb",
     [](const SinkOptions&) -> absl::StatusOr<std::unique_ptr<Sink>> {
       return MakeWandb();
     },
     "WANDB_PROJECT"},
    {"csv",
     [](const SinkOptions& options) -> absl::StatusOr<std::unique_ptr<Sink>> {
       return MakeCsv(options);
     },
     nullptr},
    // One text has all runs: Monitor.
    {"prometheus",
     [](const SinkOptions&) -> absl::StatusOr<std::unique_ptr<Sink>> {
       return std::unique_ptr<Sink>();
     },
     nullptr},
    {"otlp", MakeOtlp, nullptr},
    {"trainjob", MakeTrainJob, nullptr},
};

absl::StatusOr<const Target*> FindTarget(const std::string& name) {
  std::vector<std::string> names;
  for (const Target& target : kTargets) {
    if (name == target.name) return &target;
    names.emplace_back(target.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--to=", name, ": must be ", absl::StrJoin(names, ", ")));
}

absl::Status CheckOptions(const TrackOptions& options) {
  const bool prometheus = options.to == "prometheus";
  if (options.runs.empty()) {
    return absl::InvalidArgumentError("name a run's folder: track runs/NAME");
  }
  if (options.to.empty() && options.alerts.empty()) {
    return absl::InvalidArgumentError(
        "--to: say where the metrics go; or give an --alert");
  }
  if (prometheus && options.file.empty() && !options.port.has_value()) {
    return absl::InvalidArgumentError(
        "--to=prometheus: give a --port to answer on, or a --file to write");
  }
  if (options.port.has_value() && !prometheus) {
    return absl::InvalidArgumentError("--port: is for --to=prometheus");
  }
  if (!options.file.empty() && !prometheus && options.to != "csv") {
    return absl::InvalidArgumentError(
        "--file: is for --to=csv and --to=prometheus");
  }
  if (!options.file.empty() && options.to == "csv" && options.runs.size() > 1) {
    return absl::InvalidArgumentError(
        "--file: several runs can't share a file; without it each has "
        "track/metrics.csv in its folder");
  }
  if ((!options.webhook.empty() || !options.command.empty()) &&
      options.alerts.empty()) {
    return absl::InvalidArgumentError(
        "--webhook and --run tell alerts: give an --alert, such as spike");
  }
  return absl::OkStatus();
}

// Where the numbers of all runs are read: a file, a port, or both.
class Monitor {
 public:
  static absl::StatusOr<std::unique_ptr<Monitor>> Make(
      const TrackOptions& options) {
    std::unique_ptr<Monitor> monitor(new Monitor);
    monitor->file_ = options.file.empty() ? "" : FromCaller(options.file);
    if (!options.port.has_value()) return monitor;
    ServerOptions server;
    server.address = options.address;
    server.port = static_cast<int>(*options.port);
    CAPSTAN_ASSIGN_OR_RETURN(monitor->server_, HttpServer::Listen(server));
    monitor->server_->Get("/metrics",
                          [raw = monitor.get()](const httplib::Request&,
                                                httplib::Response& response) {
                            std::lock_guard<std::mutex> lock(raw->mutex_);
                            response.set_content(raw->text_, kPrometheusType);
                            raw->scraped_ = true;
                          });
    std::cout << "metrics at " << monitor->server_->Url() << "metrics"
              << std::endl;
    monitor->thread_ = std::thread([raw = monitor.get()] {
      const absl::Status status = raw->server_->Run();
      if (!status.ok()) {
        std::cerr << PrintableText(status.message()) << std::endl;
      }
    });
    return monitor;
  }

  ~Monitor() {
    if (server_ != nullptr) server_->Stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Set(std::string text) {
    if (!file_.empty()) CAPSTAN_RETURN_IF_ERROR(ReplaceFile(file_, text));
    std::lock_guard<std::mutex> lock(mutex_);
    text_ = std::move(text);
    scraped_ = false;
    return absl::OkStatus();
  }

  // Until what was set last was fetched, or nobody seems to.
  void AwaitScrape() {
    const double begin = MonotonicSeconds();
    while (server_ != nullptr && StopRequested() == 0 &&
           MonotonicSeconds() - begin < kLastScrapeSeconds) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (scraped_) return;
      }
      poll(nullptr, 0, /*milliseconds=*/100);
    }
  }

 private:
  Monitor() = default;

  std::string file_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::string text_;      // guarded by mutex_
  bool scraped_ = false;  // the same
};

// Ends the process soon after a stop signal, however slowly a target answers:
// the next tracker goes on as after a kill.
class PromptStop {
 public:
  PromptStop()
      : thread_([this] {
          double asked = 0.0;
          while (!done_) {
            poll(nullptr, 0, /*milliseconds=*/100);
            const int signal = StopRequested();
            if (signal == 0) continue;
            const double now = MonotonicSeconds();
            if (asked == 0.0) asked = now;
            if (now - asked > kStopSeconds) _exit(128 + signal);
          }
        }) {}
  ~PromptStop() {
    done_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// Trackers, and what they have come to.
class Tracking {
 public:
  explicit Tracking(const TrackOptions& options) : options_(options) {}

  absl::Status Start() {
    TrackerOptions tracker;
    tracker.target = options_.to.empty() ? "alerts" : options_.to;
    tracker.every_seconds = options_.every;
    tracker.patience_seconds = options_.patience;
    for (const std::string& text : options_.alerts) {
      CAPSTAN_ASSIGN_OR_RETURN(AlertRule rule, AlertRule::Parse(text));
      tracker.alerts.rules.push_back(std::move(rule));
    }
    tracker.alerts.webhook = options_.webhook;
    tracker.alerts.command = options_.command;
    if (!options_.webhook.empty()) {
      CAPSTAN_RETURN_IF_ERROR(
          HttpTarget::Make(options_.webhook, "--webhook", {}).status());
    }
    const Target* target = nullptr;
    SinkOptions sink_options;
    if (!options_.to.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(target, FindTarget(options_.to));
      sink_options.url = options_.url;
      if (!options_.file.empty()) {
        sink_options.file = FromCaller(options_.file);
      }
      tracker.project = options_.project;
      if (tracker.project.empty() && target->project != nullptr) {
        tracker.project = Variable(target->project);
      }
      if (tracker.project.empty()) tracker.project = kDefaultProject;
    }
    for (const std::string& run : options_.runs) {
      std::unique_ptr<Sink> sink;
      if (target != nullptr) {
        CAPSTAN_ASSIGN_OR_RETURN(sink, target->make(sink_options));
      }
      tracker.place = absl::StrCat(sink == nullptr ? "" : sink->place(), " ",
                                   tracker.project);
      CAPSTAN_ASSIGN_OR_RETURN(const std::string folder, FindRun(run));
      CAPSTAN_ASSIGN_OR_RETURN(
          std::unique_ptr<Tracker> started,
          Tracker::Start(folder, tracker, std::move(sink)));
      trackers_.push_back(std::move(started));
    }
    if (options_.to == "prometheus") {
      CAPSTAN_ASSIGN_OR_RETURN(monitor_, Monitor::Make(options_));
    }
    return absl::OkStatus();
  }

  // Until all runs have ended and were sent, or a stop signal. Returns the exit
  // code; what a target refused is on standard error.
  absl::StatusOr<int> Run() {
    int failed = 0;
    double next_set = 0.0;
    while (StopRequested() == 0) {
      bool busy = false;
      bool waits = false;
      for (std::unique_ptr<Tracker>& tracker : trackers_) {
        if (tracker == nullptr || tracker->done()) continue;
        const absl::Status turned = tracker->Turn();
        if (!turned.ok()) {
          std::cerr << PrintableText(absl::StrCat("ERROR: ", tracker->name(),
                                                  ": ", turned.message()))
                    << std::endl;
          ++failed;
          tracker.reset();
          continue;
        }
        busy = busy || tracker->busy();
        waits = waits || !tracker->done();
      }
      if (monitor_ != nullptr && (!waits || MonotonicSeconds() >= next_set)) {
        CAPSTAN_RETURN_IF_ERROR(Monitored());
        next_set = MonotonicSeconds() + options_.every;
      }
      if (!waits) break;
      if (!busy) {
        poll(nullptr, 0,
             static_cast<int>(1000 *
                              std::min(kMostTurnSeconds, options_.every)));
      }
    }
    if (const int signal = StopRequested()) {
      std::cout << SignalName(signal) << ": stopped; the same command goes on"
                << std::endl;
      return 128 + signal;
    }
    for (const std::unique_ptr<Tracker>& tracker : trackers_) {
      if (tracker == nullptr) continue;
      std::cout << PrintableText(
                       absl::StrCat(tracker->name(), ": ", tracker->Outcome()))
                << std::endl;
    }
    if (monitor_ != nullptr) monitor_->AwaitScrape();
    return failed == 0 ? 0 : 1;
  }

 private:
  absl::Status Monitored() {
    std::vector<Measures> runs;
    for (const std::unique_ptr<Tracker>& tracker : trackers_) {
      if (tracker != nullptr) runs.push_back(tracker->Take());
    }
    return monitor_->Set(PrometheusText(runs));
  }

  const TrackOptions& options_;
  std::vector<std::unique_ptr<Tracker>> trackers_;  // null: failed
  std::unique_ptr<Monitor> monitor_;
};

absl::StatusOr<int> Track(const TrackOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(options));
  StepAside();
  const StopSignals signals;
  IgnorePipeSignals();
  const PromptStop prompt;
  Tracking tracking(options);
  CAPSTAN_RETURN_IF_ERROR(tracking.Start());
  return tracking.Run();
}

void AddFlags(Flags& flags, TrackOptions* options) {
  flags
      .Add("runs", &options->runs,
           "Folders of runs (runs/NAME/latest), running or ended")
      .Type("FOLDER");
  flags
      .Add("--to", &options->to,
           "mlflow, trackio, wandb (a folder for `wandb sync`), csv, "
           "prometheus, otlp (a collector) or trainjob (Kubeflow's)")
      .Type("TARGET");
  flags
      .Add("--url", &options->url,
           "The target's server; default: as its own client's variables say "
           "(MLFLOW_TRACKING_URI, ..)")
      .Type("URL");
  flags
      .Add("--project", &options->project,
           "The project, or MLflow's experiment; default: its client's "
           "variable, or capstan")
      .Type("NAME");
  flags
      .Add("--file", &options->file,
           "csv: the file, instead of track/metrics.csv in the run's folder; "
           "prometheus: a file of node_exporter's textfile collector (.prom)")
      .Type("FILE");
  flags.Add("--port", &options->port,
            "prometheus: answer on this port at /metrics; 0: any that is free");
  flags
      .Add("--address", &options->address,
           "prometheus: the address to listen on; 0.0.0.0 is for all machines")
      .ShowDefault();
  flags
      .Add("--alert", &options->alerts,
           "Tell once when NAME>NUMBER (or <, <=, >=) of a metric, spike, hang "
           "(no step for 10 minutes; hang>SECONDS) or end; may be repeated")
      .Type("RULE")
      .OneEach();
  flags
      .Add("--webhook", &options->webhook,
           "An address that alerts are posted to, as JSON")
      .Type("URL");
  flags
      .Add("--run", &options->command,
           "A shell command that is run for each alert, which is JSON in its "
           "CAPSTAN_ALERT")
      .Type("COMMAND");
  flags.Add("--every", &options->every, "Seconds between two batches")
      .Positive()
      .ShowDefault();
  flags
      .Add("--patience", &options->patience,
           "Seconds to go on trying a target that doesn't answer, once the run "
           "has ended; a running one is followed through any outage")
      .Positive()
      .ShowDefault();
}

const RegisterFunction<TrackOptions> track("track", AddFlags, Track);

}  // namespace
}  // namespace capstan::track
