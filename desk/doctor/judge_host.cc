// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "desk/doctor/host.h"
#include "trainer/metrics/console.h"

namespace capstan::doctor {
namespace {

// Below these a run fails, or may.
constexpr int64_t kFewestFiles = 256;
constexpr int64_t kFewFiles = 1024;
constexpr int64_t kFewProcesses = 1024;
constexpr int64_t kMiB = int64_t{1} << 20;
// NCCL's buffers between GPUs that don't reach each other's memory: some MiB
// for each pair of ranks.
constexpr int64_t kLeastShm = 64 * kMiB;
constexpr int64_t kEnoughShm = 1024 * kMiB;

std::string LimitText(const absl::optional<int64_t>& limit) {
  return limit.has_value() ? absl::StrCat(*limit) : "unlimited";
}

Finding JudgeShm(const HostFacts& facts) {
  const std::string text =
      facts.shm_size.has_value()
          ? absl::StrCat(ShortBytes(*facts.shm_size), ", ",
                         ShortBytes(facts.shm_free), " free")
          : "isn't there";
  // Ranks on CPUs share memory by descriptors, without it.
  if (facts.gpus < 2 || facts.shm_free >= kEnoughShm) {
    return {Level::kOk, "/dev/shm", text, ""};
  }
  return {facts.shm_free < kLeastShm ? Level::kFailure : Level::kWarning,
          "/dev/shm", absl::StrCat(text, "; NCCL needs it between GPUs"),
          "start the container with --shm-size=8g (Kubernetes: an emptyDir of "
          "medium Memory at /dev/shm), or remove what fills it"};
}

Finding JudgeLimits(const HostFacts& facts) {
  Finding finding = {Level::kOk, "limits",
                     absl::StrCat(LimitText(facts.open_files), " open files, ",
                                  LimitText(facts.processes), " processes, ",
                                  facts.locked_bytes.has_value()
                                      ? ShortBytes(*facts.locked_bytes)
                                      : "unlimited",
                                  " locked memory"),
                     ""};
  if (facts.open_files.value_or(kFewFiles) < kFewFiles) {
    finding.Warn(
        "ranks, data and libraries need more open files: ulimit -n 65536",
        *facts.open_files < kFewestFiles ? Level::kFailure : Level::kWarning);
  }
  if (facts.processes.value_or(kFewProcesses) < kFewProcesses) {
    finding.Warn("each rank has threads, which count: ulimit -u 65536");
  }
  if (!facts.fabric.empty() && facts.locked_bytes.has_value()) {
    finding.Warn(
        "InfiniBand locks its buffers: ulimit -l unlimited (docker: --ulimit "
        "memlock=-1)");
  }
  return finding;
}

Finding JudgeCores(const HostFacts& facts) {
  Finding finding = {
      Level::kOk, "cpu",
      absl::StrCat(
          facts.cores, " of ", facts.cores_of_machine, " cores",
          facts.cores_by_quota > 0
              ? absl::StrCat(", ", facts.cores_by_quota, " by quota")
              : "",
          facts.governor.empty() ? "" : ", governor " + facts.governor),
      ""};
  if (facts.quota_periods > 0 &&
      20 * facts.throttled_periods > facts.quota_periods) {
    absl::StrAppend(&finding.text, ", which the quota held up in ",
                    100 * facts.throttled_periods / facts.quota_periods,
                    "% of its periods");
    finding.Warn(
        "give the container or job more CPUs, or set OMP_NUM_THREADS lower");
  }
  // Those with "pstate" choose the frequency by load, whatever the name.
  if (facts.governor == "powersave" &&
      !absl::StrContains(facts.frequency_driver, "pstate")) {
    finding.Warn(
        "the lowest frequency is used: sudo cpupower "
        "frequency-set -g performance");
  }
  return finding;
}

Finding JudgeMemory(const HostFacts& facts) {
  if (facts.memory == std::numeric_limits<int64_t>::max()) {
    return {Level::kOk, "memory", "unknown here", ""};
  }
  Finding finding = {
      Level::kOk, "memory",
      absl::StrCat(ShortBytes(facts.memory), ", ",
                   ShortBytes(facts.available_memory), " available"),
      ""};
  if (facts.killed_for_memory > 0) {
    absl::StrAppend(&finding.text, "; ", facts.killed_for_memory,
                    " processes were killed for memory since this container "
                    "or job began");
    finding.Warn(
        "give it more memory, or look at what a run takes (trainer plan)");
  }
  if (facts.available_memory < facts.memory / 10) {
    finding.Warn("other processes hold the rest: top -o %MEM lists them");
  }
  return finding;
}

Finding JudgeHugePages(const HostFacts& facts) {
  if (facts.huge_pages != "never") {
    return {Level::kOk, "huge pages",
            facts.huge_pages.empty() ? "unknown here" : facts.huge_pages, ""};
  }
  return {Level::kWarning, "huge pages",
          "never: large tensors cost more page faults",
          "echo madvise | sudo tee "
          "/sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding JudgeClock(const HostFacts& facts) {
  Finding finding = {
      Level::kOk, "clock",
      absl::StrCat(
          facts.clock_source.empty() ? "" : facts.clock_source + ", ",
          facts.clock_synchronised ? "synchronised" : "not synchronised"),
      ""};
  if (facts.clock_source == "hpet" || facts.clock_source == "acpi_pm") {
    finding.Warn(
        "each look at this clock is a slow system call: the "
        "kernel's log (dmesg) says why tsc isn't used");
  }
  return finding;
}

void JudgeFabric(const HostFacts& facts, Findings* findings) {
  if (facts.fabric.empty()) return;
  Finding finding = {Level::kOk, "fabric", "", ""};
  std::vector<std::string> up;
  std::vector<std::string> down;
  for (const FabricPort& port : facts.fabric) {
    (port.state == "ACTIVE" ? up : down)
        .push_back(absl::StrCat(port.name, " ", port.state, " ", port.rate));
  }
  up.insert(up.begin(), down.begin(), down.end());
  finding.text = absl::StrJoin(up, ", ");
  if (!down.empty()) {
    finding.Warn(
        "a port that isn't ACTIVE carries nothing: look at its cable and "
        "switch (ibstat), and at the subnet manager");
  }
  if (!facts.has_verbs) {
    finding.Warn(
        "without libibverbs.so.1 NCCL takes TCP: install "
        "libibverbs1 (rdma-core)");
  }
  findings->push_back(finding);
}

}  // namespace

Findings JudgeHost(const HostFacts& facts) {
  Findings findings = {JudgeCores(facts),     JudgeMemory(facts),
                       JudgeHugePages(facts), JudgeShm(facts),
                       JudgeLimits(facts),    JudgeClock(facts)};
  JudgeFabric(facts, &findings);
  return findings;
}

Findings JudgeInterval(const Moment& begin, const Moment& end) {
  Findings findings;
  const int64_t ticks = end.ticks - begin.ticks;
  const double stolen =
      ticks < 100 ? 0.0  // too few to tell
                  : static_cast<double>(end.stolen_ticks - begin.stolen_ticks) /
                        static_cast<double>(ticks);
  if (stolen > 0.05) {
    findings.push_back(
        {Level::kWarning, "steal",
         absl::StrFormat("%.0f%% of the cores' time went to other virtual "
                         "machines",
                         100 * stolen),
         "steps will take as much longer, at times of others' choosing: ask "
         "for a machine of your own"});
  }
  const double jump = (end.real_seconds - begin.real_seconds) -
                      (end.monotonic_seconds - begin.monotonic_seconds);
  if (std::abs(jump) > 0.05) {
    findings.push_back(
        {Level::kWarning, "clock",
         absl::StrFormat("jumped by %.2f s within %.0f s", jump,
                         end.monotonic_seconds - begin.monotonic_seconds),
         "times in logs and file names are wrong: let chrony or ntpd slew it, "
         "and see whether the virtual machine is being suspended"});
  }
  return findings;
}

}  // namespace capstan::doctor
