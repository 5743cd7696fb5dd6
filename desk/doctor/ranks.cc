// SPDX-License-Identifier: Apache-2.0
#include "desk/doctor/ranks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"

namespace capstan::doctor {
namespace {

using Json = nlohmann::ordered_json;

HostReport HostOf(const Json& json) {
  return {json.value("host", ""), json.value("versions", ""),
          FindingsOf(json.value("findings", Json::array()))};
}

RanksReport RanksOf(const Json& json) {
  RanksReport report;
  report.rank = json["rank"].get<int>();
  for (const Json& host : json["hosts"]) report.others.push_back(HostOf(host));
  report.findings = FindingsOf(json["findings"]);
  for (const Json& transfer : json["all_reduce"]) {
    report.transfers.push_back(
        {transfer["bytes"].get<int64_t>(), transfer["seconds"].get<double>(),
         transfer["wrong"].get<int64_t>(),
         transfer["bus_bytes_per_second"].get<double>()});
  }
  return report;
}

Finding JudgeVersions(const std::vector<HostReport>& hosts) {
  for (const HostReport& host : hosts) {
    if (host.versions == hosts[0].versions) continue;
    return {Level::kWarning, "versions",
            absl::StrCat(host.host, " has ", host.versions, "; ", hosts[0].host,
                         " has ", hosts[0].versions),
            "install the same on all hosts: results and speed may differ"};
  }
  return {Level::kOk, "versions", hosts[0].versions, ""};
}

// A rank's part. `own` is empty but for a host's first rank.
RanksReport Measure(const RankInfo& info, const HostReport& own,
                    ProcessGroup* group) {
  RanksReport report;
  report.rank = info.rank;
  std::vector<HostReport> hosts;
  for (const std::string& text : FromAllRanks(*group, JsonText(AsJson(own)))) {
    HostReport host = HostOf(ParseJson<Json>(text));
    if (!host.host.empty()) hosts.push_back(std::move(host));
  }
  if (!hosts.empty()) report.findings.push_back(JudgeVersions(hosts));
  if (group->size() > 1) {
    report.transfers = MeasureAllReduce(group);
    report.findings.push_back(JudgeAllReduce(report.transfers, group->size(),
                                             static_cast<int>(hosts.size()),
                                             group->backend()));
  } else {
    report.findings.push_back(
        {Level::kOk, "all-reduce", "a single rank has nothing to sum", ""});
  }
  if (hosts.size() > 1) {
    report.findings.push_back(JudgeSkew(MeasureSkew(group)));
  }
  for (size_t i = 1; i < hosts.size(); ++i) {
    report.others.push_back(std::move(hosts[i]));
  }
  return report;
}

}  // namespace

Json AsJson(const HostReport& report) {
  return {{"host", report.host},
          {"versions", report.versions},
          {"findings", AsJson(report.findings)}};
}

Json AsJson(const RanksReport& report) {
  Json json = {{"rank", report.rank},
               {"findings", AsJson(report.findings)},
               {"hosts", Json::array()},
               {"all_reduce", Json::array()}};
  for (const HostReport& host : report.others) {
    json["hosts"].push_back(AsJson(host));
  }
  for (const Transfer& transfer : report.transfers) {
    json["all_reduce"].push_back(
        {{"bytes", transfer.bytes},
         {"seconds", transfer.seconds},
         {"wrong", transfer.wrong},
         {"bus_bytes_per_second", transfer.bus_bytes_per_second}});
  }
  return json;
}

absl::StatusOr<RanksReport> AskRanks(Place place, int gpus,
                                     const HostReport& own) {
  // The ranks are other processes if the place forks.
  const int memory = memfd_create("capstan_doctor", MFD_CLOEXEC);
  if (memory < 0) return absl::ErrnoToStatus(errno, "no memory for a report");
  const RankMain main = [&](const RankInfo& info) -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                             CreateProcessGroup(info, gpus));
    // Without RanksHaveMet: a signal ends a rank at once, as nothing is saved.
    const RanksReport report =
        Measure(info, info.local_rank == 0 ? own : HostReport(), group.get());
    // Those of a host know the same.
    if (place.forks && info.local_rank != 0) return absl::OkStatus();
    return WriteAll(memory, JsonText(AsJson(report)), "the report");
  };
  place.max_restarts = 0;
  if (!place.forks) {
    absl::Status asked = AskLauncher(&place);
    if (!asked.ok()) {
      close(memory);
      return asked;
    }
  }
  const int code =
      place.forks ? LaunchRanks(place, main) : RunSingleRank(place.info, main);
  std::string text(lseek(memory, 0, SEEK_END), '\0');
  const ssize_t got = pread(memory, &text[0], text.size(), 0);
  close(memory);
  if (code > 128) {
    RanksReport stopped;
    stopped.stopped = code;
    return stopped;
  }
  if (code != 0 || got != static_cast<ssize_t>(text.size()) || text.empty()) {
    return absl::UnavailableError(
        absl::StrCat("the ranks failed with exit code ", code));
  }
  return RanksOf(ParseJson<Json>(text));
}

}  // namespace capstan::doctor
