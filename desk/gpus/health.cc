// SPDX-License-Identifier: Apache-2.0
#include "desk/gpus/health.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/confined_child.h"
#include "base/gpu_driver.h"
#include "base/gpus.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// Structures of nvml.h, by its documentation.
struct Utilization {
  unsigned gpu, memory;
};
struct Process {
  unsigned pid;
  unsigned long long bytes;  // NOLINT; all ones: unknown
  unsigned gpu_instance, compute_instance;
};

constexpr int kGpuSensor = 0;        // NVML_TEMPERATURE_GPU
constexpr int kSmClock = 1;          // NVML_CLOCK_SM
constexpr int kUncorrected = 1;      // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int kSinceLoaded = 0;      // NVML_VOLATILE_ECC
constexpr int kReadPeer = 0;         // NVML_P2P_CAPS_INDEX_READ
constexpr unsigned kMostLinks = 18;  // NVML_NVLINK_MAX_LINKS

// nvmlClocksThrottleReasons that point at a fault.
constexpr struct {
  uint64_t bit;
  const char* name;
} kReasons[] = {{0x08, "HW slowdown"},
                {0x20, "SW thermal slowdown"},
                {0x40, "HW thermal slowdown"},
                {0x80, "HW power brake"}};

// Sets a field to a number that a function of a device tells last.
template <typename Number = unsigned, typename... Args>
void Tell(const Nvml& nvml, Json* gpu, const char* field, double unit,
          const char* name, Args... args) {
  Number value = 0;
  if (!nvml.Call(name, args..., &value)) return;
  if (unit == 1.0) {
    (*gpu)[field] = value;
  } else {
    (*gpu)[field] = value * unit;
  }
}

std::string Text(const Nvml& nvml, const char* name, void* device) {
  char text[96] = "";
  return nvml.Call(name, device, &text[0], unsigned{sizeof(text)}) ? text : "";
}

void TellLoad(const Nvml& nvml, void* device, Json* gpu) {
  Tell(nvml, gpu, "celsius", 1, "nvmlDeviceGetTemperature", device, kGpuSensor);
  Tell(nvml, gpu, "watts", 1e-3, "nvmlDeviceGetPowerUsage", device);
  Tell(nvml, gpu, "watts_limit", 1e-3, "nvmlDeviceGetEnforcedPowerLimit",
       device);
  Utilization use = {};
  if (nvml.Call("nvmlDeviceGetUtilizationRates", device, &use)) {
    (*gpu)["utilisation"] = use.gpu;
  }
  Tell(nvml, gpu, "sm_mhz", 1, "nvmlDeviceGetClockInfo", device, kSmClock);
  Tell(nvml, gpu, "sm_mhz_max", 1, "nvmlDeviceGetMaxClockInfo", device,
       kSmClock);
  unsigned long long reasons = 0;  // NOLINT: as in nvml.h
  if (nvml.Call("nvmlDeviceGetCurrentClocksThrottleReasons", device,
                &reasons)) {
    Json& slowed = (*gpu)["slowed"] = Json::array();
    for (const auto& reason : kReasons) {
      if (reasons & reason.bit) slowed.push_back(reason.name);
    }
  }
}

void TellFaults(const Nvml& nvml, void* device, Json* gpu) {
  Tell<unsigned long long>(nvml, gpu, "uncorrected_errors", 1,  // NOLINT
                           "nvmlDeviceGetTotalEccErrors", device, kUncorrected,
                           kSinceLoaded);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (nvml.Call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected,
                &pending, &failed)) {
    (*gpu)["rows_pending"] = pending != 0;
    (*gpu)["rows_failed"] = failed != 0;
  }
  int persistent = 0;
  if (nvml.Call("nvmlDeviceGetPersistenceMode", device, &persistent)) {
    (*gpu)["persistent"] = persistent != 0;
  }
}

void TellLinks(const Nvml& nvml, const std::vector<void*>& devices,
               void* device, Json* gpu) {
  Tell(nvml, gpu, "pcie_width", 1, "nvmlDeviceGetCurrPcieLinkWidth", device);
  Tell(nvml, gpu, "pcie_width_max", 1, "nvmlDeviceGetMaxPcieLinkWidth", device);
  int links = 0, active = 0;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int state = 0;
    if (!nvml.Call("nvmlDeviceGetNvLinkState", device, link, &state)) continue;
    ++links;
    active += state;
  }
  (*gpu)["nvlinks"] = links;
  (*gpu)["nvlinks_active"] = active;
  Json& no_peer = (*gpu)["no_peer"] = Json::array();
  for (size_t other = 0; other < devices.size(); ++other) {
    int status = 0;
    if (devices[other] != device &&
        nvml.Call("nvmlDeviceGetP2PStatus", device, devices[other], kReadPeer,
                  &status) &&
        status != 0) {
      no_peer.push_back(other);
    }
  }
}

void TellProcesses(const Nvml& nvml, void* device, Json* gpu) {
  std::vector<Process> processes(256);
  auto count = static_cast<unsigned>(processes.size());
  if (!nvml.Call("nvmlDeviceGetComputeRunningProcesses_v3", device, &count,
                 processes.data())) {
    return;
  }
  Json& list = (*gpu)["processes"] = Json::array();
  for (unsigned i = 0; i < count; ++i) {
    const Process& process = processes[i];
    const std::string name =
        FirstLineIn(absl::StrCat("/proc/", process.pid, "/comm"));
    list.push_back({{"pid", process.pid},
                    {"name", name.empty() ? "?" : name},
                    {"bytes", static_cast<int64_t>(process.bytes)}});
  }
}

// UUIDs of the slices (MIG) of a GPU, which CUDA shows in its place.
Json Slices(const Nvml& nvml, void* device) {
  Json uuids = Json::array();
  unsigned count = 0;
  nvml.Call("nvmlDeviceGetMaxMigDeviceCount", device, &count);
  for (unsigned i = 0; i < count; ++i) {
    void* slice = nullptr;
    if (!nvml.Call("nvmlDeviceGetMigDeviceHandleByIndex", device, i, &slice)) {
      continue;
    }
    uuids.push_back(Text(nvml, "nvmlDeviceGetUUID", slice));
  }
  return uuids;
}

// In the child.
Json AskNvml(const Nvml& nvml) {
  unsigned count = 0;
  nvml.Call("nvmlDeviceGetCount_v2", &count);
  std::vector<void*> devices(count, nullptr);
  for (unsigned i = 0; i < count; ++i) {
    nvml.Call("nvmlDeviceGetHandleByIndex_v2", i, &devices[i]);
  }
  Json gpus = Json::array();
  for (unsigned i = 0; i < count; ++i) {
    // One that doesn't answer (it has fallen off the bus) is told of, too.
    Json gpu = {{"index", i},
                {"name", Text(nvml, "nvmlDeviceGetName", devices[i])}};
    gpu["uuid"] = Text(nvml, "nvmlDeviceGetUUID", devices[i]);
    Json slices = Slices(nvml, devices[i]);
    if (!slices.empty()) gpu["slices"] = std::move(slices);
    NvmlMemory memory = {};
    if (nvml.Call("nvmlDeviceGetMemoryInfo", devices[i], &memory)) {
      gpu["memory_bytes"] = memory.total;
      gpu["free_bytes"] = memory.free;
    }
    TellLoad(nvml, devices[i], &gpu);
    TellFaults(nvml, devices[i], &gpu);
    TellLinks(nvml, devices, devices[i], &gpu);
    TellProcesses(nvml, devices[i], &gpu);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Json OfCuda(const std::vector<Gpu>& gpus) {
  Json list = Json::array();
  for (const Gpu& gpu : gpus) {
    list.push_back({{"index", list.size()},
                    {"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"memory_bytes", gpu.memory},
                    {"free_bytes", gpu.free_memory}});
  }
  return list;
}

}  // namespace

absl::StatusOr<Json> ReadGpuHealth() {
  const GpuReport& cuda = Gpus();
  CAPSTAN_RETURN_IF_ERROR(cuda.status);
  const char* const root = getenv("CAPSTAN_MACHINE_ROOT");
  ChildLimits limits;
  // As for the driver (gpus.cc).
  limits.bytes = std::numeric_limits<int64_t>::max() / 2;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<ConfinedChild> child,
      ConfinedChild::Start(limits, [&](const ConfinedChild::Parent& parent) {
        Nvml nvml(root == nullptr ? "" : root);
        // A process's name may be cut within a character.
        parent.Send(nvml.Init() ? JsonText(AskNvml(nvml)) : std::string());
      }));
  const absl::StatusOr<std::string> answer = child->Receive(uint64_t{1} << 24);
  if (!answer.ok()) {
    return Annotate(answer.status(),
                    "the process that asks NVIDIA's management library");
  }
  Json gpus = answer->empty() ? OfCuda(cuda.gpus) : ParseJson<Json>(*answer);
  if (!gpus.is_array()) {  // a name that isn't text
    return absl::InternalError("NVIDIA's management library tells nonsense");
  }
  for (Json& gpu : gpus) {
    gpu["visible"] = std::any_of(
        cuda.gpus.begin(), cuda.gpus.end(), [&gpu](const Gpu& shown) {
          const Json slices = gpu.value("slices", Json::array());
          return shown.uuid == gpu["uuid"].get<std::string>() ||
                 std::find(slices.begin(), slices.end(), shown.uuid) !=
                     slices.end();
        });
  }
  return gpus;
}

}  // namespace capstan
