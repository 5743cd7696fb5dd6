// SPDX-License-Identifier: Apache-2.0
//
// doctor: whether this machine, or the hosts of a run, are fit to train.
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <torch/csrc/api/include/torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/place.h"
#include "cluster/launch/signals.h"
#include "desk/doctor/disk.h"
#include "desk/doctor/finding.h"
#include "desk/doctor/gpus.h"
#include "desk/doctor/host.h"
#include "desk/doctor/pipeline.h"
#include "desk/doctor/ranks.h"
#include "desk/gpus/health.h"
#include "trainer/commands/command.h"
#include "trainer/commands/nccl_version.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/session/output_folder.h"

namespace capstan::doctor {
namespace {

using Json = nlohmann::ordered_json;

std::string Versions() {
  utsname system = {};
  uname(&system);
  const std::string& driver = Gpus().driver_version;
  return absl::StrCat("Capstan " CAPSTAN_VERSION ", LibTorch " TORCH_VERSION,
                      ", NCCL ", HasGpuParts() ? NcclVersion() : "none",
                      driver.empty() ? "" : ", driver " + driver, ", Linux ",
                      system.release, ", glibc ", gnu_get_libc_version());
}

Findings LookAtGpus() {
  Findings findings;
  const absl::StatusOr<int> usable = GpusOfRun();
  if (!usable.ok()) {
    findings.push_back(FailureOf("gpus", usable.status(), "gpu/unusable",
                                 "trainer gpus shows what there is"));
    if (!Gpus().status.ok()) return findings;
  }
  const absl::StatusOr<Json> gpus = ReadGpuHealth();
  if (!gpus.ok()) {
    findings.push_back(FailureOf("gpus", gpus.status(), "gpu/unusable",
                                 "does nvidia-smi work?"));
  } else if (gpus->empty()) {
    const std::string& note = Gpus().note;
    findings.push_back({Level::kOk, "gpus", note.empty() ? "none" : note, ""});
  } else {
    for (Finding& finding : JudgeGpus(*gpus)) {
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

HostReport LookAtHost(const std::string& root, int gpus,
                      const std::string& output) {
  HostReport report;
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  report.host = name[0] == '\0' ? "?" : name;
  report.versions = Versions();
  report.findings = JudgeHost(ReadHost(root, gpus));
  report.findings.push_back(JudgeDisk(MeasureDisk(output)));
  for (Finding& finding : LookAtGpus()) {
    report.findings.push_back(std::move(finding));
  }
  return report;
}

Finding LookAtPipeline(const Prepared& prepared, const RunOptions& options) {
  std::vector<std::string> words = WordsOf(options);
  words.insert(words.begin(), {"trainer", "train"});
  const absl::StatusOr<PipelineFacts> facts = MeasurePipeline(prepared, words);
  if (facts.ok()) return JudgePipeline(*facts);
  return FailureOf("data", facts.status(), "",
                   "trainer check, then trainer train with this config say "
                   "more");
}

// What `fit --machine` reads besides.
void AddMachine(const Place& place, Json* all) {
  (*all)["ranks"] = place.info.world_size;
  (*all)["cores"] = AvailableCores();
  (*all)["memory"] = AvailableHostMemory();
  if (Gpus().gpus.empty()) return;
  (*all)["gpu"] = Gpus().gpus[0].name;
  (*all)["gpu_memory"] = LeastGpuMemory();
}

void Print(const HostReport& own, const RanksReport& ranks,
           const absl::StatusOr<Place>& place, bool json) {
  if (json) {
    Json all = AsJson(ranks);
    all["hosts"].insert(all["hosts"].begin(), AsJson(own));
    if (place.ok()) AddMachine(*place, &all);
    std::cout << JsonText(all, 2) << "\n";
    return;
  }
  const int columns = Console(STDOUT_FILENO).Columns();
  if (!ranks.others.empty()) std::cout << PrintableText(own.host) << "\n";
  std::cout << AsText(own.findings, columns);
  for (const HostReport& host : ranks.others) {
    std::cout << "\n"
              << PrintableText(host.host) << "\n"
              << AsText(host.findings, columns);
  }
  if (!ranks.others.empty()) std::cout << "\nall hosts\n";
  std::cout << AsText(ranks.findings, columns);
  if (ranks.transfers.empty()) return;
  std::cout << "\n" << TransferTable(ranks.transfers);
}

bool AnyFailure(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& it) {
    return it.level == Level::kFailure;
  });
}

struct Subject {
  std::unique_ptr<Prepared> prepared;  // null: no config, or a wrong one
  absl::StatusOr<Place> place = absl::UnknownError("");
  int gpus = 0;
  std::string output;
};

// A config that can't be prepared is a finding; the machine is looked at all
// the same.
Subject FindSubject(const RunOptions& options, Findings* findings) {
  Subject subject;
  subject.output = FromCaller("runs");
  subject.gpus = GpusOfRun().value_or(0);
  if (!options.configs.empty()) {
    absl::StatusOr<std::unique_ptr<Prepared>> prepared = Prepare(options);
    if (prepared.ok()) {
      subject.prepared = *std::move(prepared);
      const TrainJob& job = subject.prepared->job;
      subject.place = subject.prepared->place;
      subject.output = MeetingFolder(job.loaded.config, job.workspace_folder);
      return subject;
    }
    findings->push_back(FailureOf("config", prepared.status(), "",
                                  "see trainer explain, and trainer check"));
  }
  subject.place = FindPlace(LaunchSettings(), subject.gpus,
                            subject.gpus > 0 ? Gpus().on_machine : 0);
  return subject;
}

absl::StatusOr<int> Doctor(const RunOptions& options) {
  IgnorePipeSignals();
  if (options.print_config) {
    CAPSTAN_RETURN_IF_ERROR(Prepare(options).status());
    return 0;
  }
  if (options.configs.empty() && !options.overrides.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--set ", options.overrides[0],
        " changes a config, and there is none: add --config=FILE"));
  }
  const char* const variable = std::getenv("CAPSTAN_MACHINE_ROOT");
  const std::string root = variable == nullptr ? "" : variable;
  const Moment begin = ReadMoment(root);
  Findings found;
  Subject subject = FindSubject(options, &found);
  RanksReport ranks;
  HostReport own;
  bool exits = false;
  if (subject.place.ok()) {
    Place& place = *subject.place;
    place.info.meeting_folder = subject.output;
    exits = !place.forks;
    if (place.forks || place.info.local_rank == 0) {
      own = LookAtHost(root, subject.gpus, subject.output);
    }
    absl::StatusOr<RanksReport> asked = AskRanks(place, subject.gpus, own);
    if (asked.ok()) {
      ranks = *std::move(asked);
      if (ranks.stopped != 0) return ranks.stopped;
    } else {
      found.push_back(FailureOf("ranks", asked.status(), "doctor/ranks",
                                "what they say above is why"));
    }
    if (subject.prepared != nullptr && place.Alone()) {
      found.push_back(LookAtPipeline(*subject.prepared, options));
    }
  } else {
    own = LookAtHost(root, subject.gpus, subject.output);
    found.push_back(FailureOf("ranks", subject.place.status(),
                              "launch/environment",
                              "docs/clusters.md shows each launcher"));
  }
  for (Finding& finding : JudgeInterval(begin, ReadMoment(root))) {
    found.push_back(std::move(finding));
  }
  ranks.findings.insert(ranks.findings.end(), found.begin(), found.end());
  if (ranks.rank == 0) Print(own, ranks, subject.place, options.json);
  bool failure = AnyFailure(own.findings) || AnyFailure(ranks.findings);
  for (const HostReport& host : ranks.others) {
    failure = failure || AnyFailure(host.findings);
  }
  std::cout.flush();
  if (exits) _exit(failure ? 1 : 0);  // as train does
  return failure ? 1 : 0;
}

const RegisterFunction<RunOptions> doctor(
    "doctor",
    [](Flags& flags, RunOptions* options) {
      AddRunOptions(flags, options);
      flags.Add("--json", &options->json, "Print JSON, for programs");
    },
    Doctor);

}  // namespace
}  // namespace capstan::doctor
