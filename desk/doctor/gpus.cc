// SPDX-License-Identifier: Apache-2.0
#include "desk/doctor/gpus.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "trainer/metrics/console.h"

namespace capstan::doctor {
namespace {

using Json = nlohmann::ordered_json;

void JudgeMemory(const Json& gpu, Finding* finding) {
  const auto errors = gpu.value("uncorrected_errors", int64_t{0});
  if (errors > 0) {
    finding->Add(Level::kFailure,
                 absl::StrCat(errors, " uncorrected memory errors"),
                 "results may be wrong: reset it (nvidia-smi -r) and watch; if "
                 "they come again, have it replaced");
  }
  if (gpu.value("rows_failed", false)) {
    finding->Add(Level::kFailure, "damaged memory couldn't be replaced",
                 "have the card replaced");
  } else if (gpu.value("rows_pending", false)) {
    finding->Add(Level::kWarning, "damaged memory waits for its replacement",
                 "reset it (nvidia-smi -r) while nothing runs");
  }
  const auto total = gpu.value("memory_bytes", int64_t{0});
  const auto free = gpu.value("free_bytes", int64_t{0});
  if (gpu.value("name", "").empty() && gpu.value("uuid", "").empty()) {
    finding->Add(
        Level::kFailure, "doesn't answer",
        "has it fallen off the bus? The kernel's log (dmesg) says \"Xid "
        "79\" then: restart the machine");
  } else if (free < total / 10 * 9) {
    finding->Add(Level::kWarning,
                 absl::StrCat(ShortBytes(total - free), " are in use"),
                 "other processes hold them (trainer gpus)");
  }
}

void JudgeClocks(const Json& gpu, Finding* finding) {
  const auto reasons = gpu.value("slowed", std::vector<std::string>());
  if (!reasons.empty()) {
    finding->Add(
        Level::kWarning,
        absl::StrFormat("slowed down to %d of %d MHz by %s",
                        gpu.value("sm_mhz", 0), gpu.value("sm_mhz_max", 0),
                        absl::StrJoin(reasons, ", ")),
        "look at its cooling and power supply");
  }
  if (!gpu.value("persistent", true)) {
    finding->Add(Level::kWarning, "persistence mode is off",
                 "each start waits seconds for the driver: sudo nvidia-smi -pm "
                 "1");
  }
}

void JudgeLinks(const Json& gpu, Finding* finding) {
  const int width = gpu.value("pcie_width", 0);
  const int widest = gpu.value("pcie_width_max", 0);
  if (width < widest) {
    finding->Add(Level::kWarning,
                 absl::StrCat("PCIe has ", width, " of ", widest, " lanes"),
                 "reseat the card, or see what its slot allows");
  }
  const int links = gpu.value("nvlinks", 0);
  const int active = gpu.value("nvlinks_active", 0);
  // None: not connected, as it may be meant.
  if (active > 0 && active < links) {
    finding->Add(
        Level::kWarning,
        absl::StrCat(active, " of ", links, " NVLinks are active"),
        "nvidia-smi nvlink -e shows their errors; reset it, or look at "
        "the bridge or nvidia-fabricmanager");
  }
  const auto no_peer = gpu.value("no_peer", std::vector<int>());
  if (!no_peer.empty()) {
    finding->Add(Level::kWarning,
                 absl::StrCat("can't read the memory of GPU ",
                              absl::StrJoin(no_peer, ", ")),
                 "traffic goes through host memory: nvidia-smi topo -p2p r "
                 "says why; IOMMU and PCIe's ACS forbid it, too");
  }
}

}  // namespace

Findings JudgeGpus(const Json& gpus) {
  Findings findings;
  for (const Json& gpu : gpus) {
    const std::string name = gpu.value("name", "");
    Finding finding = {Level::kOk, absl::StrCat("gpu ", gpu.value("index", 0)),
                       name.empty() ? "unnamed" : PrintableText(name), ""};
    JudgeMemory(gpu, &finding);
    JudgeClocks(gpu, &finding);
    JudgeLinks(gpu, &finding);
    if (!gpu.value("visible", true)) {  // what others do with it is theirs
      finding.level = Level::kOk;
      finding.advice = "";
      absl::StrAppend(&finding.text, " (not for runs: CUDA doesn't show it)");
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace capstan::doctor
