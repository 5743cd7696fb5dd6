// SPDX-License-Identifier: Apache-2.0
#include "base/gpus.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/confine.h"
#include "base/files.h"
#include "base/gpu_driver.h"
#include "base/subprocess.h"

namespace capstan {
namespace {

// What LibTorch 2.11.0 for CUDA 13.0 asks of the driver.
constexpr int kCudaVersion = 13000;
constexpr char kDriverVersion[] = "580";

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

// CUresult, of cuda.h.
constexpr int kStubLibrary = 34;
constexpr int kDeviceUnavailable = 46;
constexpr int kNoDevice = 100;
constexpr int kSystemNotReady = 802;
constexpr int kDriverMismatch = 803;
constexpr int kCompatNotSupported = 804;

// How many entries of a folder begin with `prefix` and a digit.
std::vector<std::string> Numbered(const std::string& folder,
                                  const std::string& prefix) {
  std::vector<std::string> found;
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return found;
  while (const dirent* entry = readdir(entries)) {
    const std::string name = entry->d_name;
    if (absl::StartsWith(name, prefix) && name.size() > prefix.size() &&
        absl::ascii_isdigit(name[prefix.size()])) {
      found.push_back(folder + "/" + name);
    }
  }
  closedir(entries);
  std::sort(found.begin(), found.end());
  return found;
}

// The first word like "580.65.06" in what the kernel's module says of itself.
std::string ModuleVersion(const std::string& root) {
  std::ifstream file(root + "/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos) {
      return word;
    }
  }
  return "";
}

// Whether CUDA_VISIBLE_DEVICES says that no GPU is to be used: CUDA's own ways,
// and the one of Slurm for a job without GPUs.
bool NoneByChoice(const char* visible) {
  if (visible == nullptr) return false;
  const std::vector<absl::string_view> entries = absl::StrSplit(visible, ',');
  const absl::string_view first = absl::StripAsciiWhitespace(entries[0]);
  return first.empty() || first[0] == '-' || first == "NoDevFiles";
}

absl::Status CannotUse(absl::string_view problem) {
  return absl::FailedPreconditionError(
      absl::StrCat("can't use this machine's GPUs: ", problem,
                   " (set CUDA_VISIBLE_DEVICES= to train on the CPU instead)"));
}

// 12040: "12.4".
std::string CudaText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Why none of the device files opens; 0 if one does, ENOENT if there are none.
int WhyNoneOpens(const std::vector<std::string>& devices) {
  int why = ENOENT;
  for (const std::string& device : devices) {
    const int opened = open(device.c_str(), O_RDWR | O_CLOEXEC);
    if (opened >= 0) {
      close(opened);
      return 0;
    }
    why = errno;
  }
  return why;
}

// What to do about an error of cuInit or later.
std::string Advice(int error) {
  switch (error) {
    case kStubLibrary:
      return "the libcuda.so.1 that the loader finds is the CUDA Toolkit's "
             "stub: take the folder `stubs` out of LD_LIBRARY_PATH";
    case kDeviceUnavailable:
      return "another process has it for itself: see nvidia-smi";
    case kSystemNotReady:
      return "GPUs behind NVSwitch need the service nvidia-fabricmanager: "
             "start it";
    case kDriverMismatch:
      return "the driver's library and the kernel's module are of different "
             "versions: restart the machine (or the container) after an update "
             "of the driver";
    case kCompatNotSupported:
      return "CUDA's compatibility package doesn't work with this GPU: take "
             "its folder out of LD_LIBRARY_PATH";
    default:
      return "does nvidia-smi work? The kernel's log (dmesg) may say more";
  }
}

// Reads until the writers are gone, or the deadline (MonotonicSeconds).
std::string ReadUntil(int from, double deadline) {
  constexpr double kPatience = 10.0;
  double notice = MonotonicSeconds() + kPatience;
  std::string text;
  while (MonotonicSeconds() < deadline) {
    const double now = MonotonicSeconds();
    if (now >= notice) {
      std::fprintf(stderr, "waiting for the NVIDIA driver\n");
      notice = deadline;
    }
    pollfd wait = {from, POLLIN, 0};
    const double next = std::min(notice, deadline) - now;
    if (poll(&wait, 1, static_cast<int>(1000 * next) + 1) <= 0) continue;
    char buffer[4096];
    const ssize_t got = read(from, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, got);
  }
  return text;
}

// What becomes of the child once it has said all, or is late: how it ended, ""
// if well. A driver can hold its process in the kernel, where no signal ends
// it.
std::string EndOf(pid_t child, bool complete, double limit_seconds) {
  // It may have just crashed.
  const absl::optional<ChildEnd> end =
      complete ? absl::nullopt : WaitFor(child, 0.2);
  if (!end.has_value()) {
    kill(child, SIGKILL);
    WaitFor(child, 0.8);
    return complete
               ? ""
               : absl::StrCat("did not answer within ", limit_seconds, " s");
  }
  if (end->signal > 0) {
    return absl::StrCat("crashed: signal ", end->signal, " (",
                        strsignal(end->signal), ")");
  }
  return absl::StrCat("ended its process",
                      end->known() ? ", with " + end->Text() : "");
}

// Asks in a child. *end: how it ended, if not well.
DriverAnswer AskInChild(const GpuProbe& probe, std::string* end) {
  Pipe pipe;
  const pid_t child = pipe.ok() ? Fork() : -1;
  if (child < 0) {
    *end = absl::StrCat("could not be asked (", strerror(errno), ")");
    return {};
  }
  if (child == 0) {
    ChildLimits limits;
    // CUDA reserves addresses for all memory of the machine and its GPUs.
    limits.bytes = std::numeric_limits<int64_t>::max() / 2;
    limits.cpu_seconds =
        std::max<int64_t>(60, static_cast<int64_t>(probe.limit_seconds));
    ConfineChild(limits, {pipe.write_end()});
    TellAboutDriver(probe.root, pipe.write_end());
    _exit(0);
  }
  pipe.CloseWrite();
  const DriverAnswer answer = ParseDriverAnswer(
      ReadUntil(pipe.read_end(), MonotonicSeconds() + probe.limit_seconds));
  *end = EndOf(child, answer.complete, probe.limit_seconds);
  return answer;
}

// By a scheduler's control group, or a container.
void NoteNoneGiven(GpuReport* report) {
  if (report->on_machine == 0) return;
  report->note =
      absl::StrCat("this machine has ", report->on_machine,
                   " NVIDIA GPUs, but none is given to this container or job");
}

// No library, but perhaps a device.
void JudgeWithoutLibrary(const std::string& why, int opens, GpuReport* report) {
  // A container that was given the device, but not the driver's libraries.
  if (opens != ENOENT && opens != EPERM) {
    report->status = CannotUse(absl::StrCat(
        "there is a GPU, but not the driver's library (", why,
        "): install the NVIDIA driver's libraries, or in a container start it "
        "with --gpus=all (nvidia-container-toolkit) or --nv"));
  } else {
    NoteNoneGiven(report);
  }
}

// An entry of CUDA_VISIBLE_DEVICES that is there twice; "": none.
std::string RepeatedIn(const char* visible) {
  std::set<absl::string_view> seen;
  for (absl::string_view entry : absl::StrSplit(visible, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    if (!seen.insert(entry).second) return std::string(entry);
  }
  return "";
}

// CUDA works, and shows nothing.
void JudgeNoDevice(const char* visible, int opens, GpuReport* report) {
  const std::string repeated = visible == nullptr ? "" : RepeatedIn(visible);
  if (!repeated.empty()) {
    report->status = CannotUse(
        absl::StrCat(kVisible, " is \"", visible, "\", with ", repeated,
                     " twice, for which CUDA shows no GPU: name each once"));
  } else if (visible != nullptr) {
    report->status = CannotUse(absl::StrCat(
        kVisible, " is \"", visible,
        "\", which names no GPU that this process may use: `nvidia-smi -L` "
        "lists them"));
  } else if (opens == EACCES || opens == EIO || opens == ENODEV) {
    report->status = CannotUse(absl::StrCat(
        "/dev/nvidia0 does not open (", strerror(opens),
        "): is this user allowed to use GPUs, does nvidia-smi work?"));
  } else if (opens == 0) {
    report->status = CannotUse(
        "the driver opens them, but CUDA shows none: does nvidia-smi list "
        "them? With MIG on, instances must be made first");
  } else {
    NoteNoneGiven(report);
  }
}

void JudgeDevices(const char* visible, GpuReport* report) {
  std::vector<Gpu>& gpus = report->gpus;
  if (report->cuda_version > 0 && report->cuda_version < kCudaVersion) {
    report->status = CannotUse(absl::StrCat(
        "the NVIDIA driver",
        report->driver_version.empty() ? "" : " " + report->driver_version,
        " is for CUDA up to ", CudaText(report->cuda_version),
        ", but this program needs CUDA ", CudaText(kCudaVersion),
        ", hence driver ", kDriverVersion, " or later: update the driver"));
    gpus.clear();
    return;
  }
  if (visible == nullptr) return;
  const std::vector<std::string> named = absl::StrSplit(visible, ',');
  if (gpus.size() < named.size()) {
    report->note =
        absl::StrCat(kVisible, " is \"", visible, "\", of which CUDA shows ",
                     gpus.size(), ": it stops at the first that isn't there");
  }
}

}  // namespace

GpuReport AskDriver(const GpuProbe& probe) {
  GpuReport report;
  const char* const visible = getenv(kVisible);
  if (NoneByChoice(visible)) return report;
  const std::string& root = probe.root;
  const std::string module = root + "/proc/driver/nvidia";
  const std::vector<std::string> devices = Numbered(root + "/dev", "nvidia");
  // A library that is loaded already stands in for the driver.
  void* const loaded =
      root.empty() ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (loaded != nullptr) dlclose(loaded);
  if (loaded == nullptr && devices.empty() && !PathExists(module) &&
      !PathExists(root + "/dev/nvidiactl") && !PathExists(root + "/dev/dxg")) {
    return report;
  }
  report.on_machine = static_cast<int>(Numbered(module + "/gpus", "").size());

  std::string end;
  const DriverAnswer answer = AskInChild(probe, &end);
  report.cuda_version = answer.cuda_version;
  report.driver_version = answer.driver_version.empty() ? ModuleVersion(root)
                                                        : answer.driver_version;
  if (!end.empty()) {
    report.status = CannotUse(absl::StrCat(
        "the NVIDIA driver ", end,
        answer.stage.empty() ? "" : absl::StrCat(" (in ", answer.stage, ")"),
        ": ", Advice(0)));
  } else if (!answer.no_library.empty()) {
    JudgeWithoutLibrary(answer.no_library, WhyNoneOpens(devices), &report);
  } else if (answer.error == kNoDevice ||
             (answer.error == 0 && answer.gpus.empty())) {
    JudgeNoDevice(visible, WhyNoneOpens(devices), &report);
  } else if (answer.error != 0) {
    report.status = CannotUse(
        absl::StrCat(answer.stage, " failed with ", answer.error_name, " (",
                     answer.error, "): ", Advice(answer.error)));
  } else {
    report.gpus = answer.gpus;
    JudgeDevices(visible, &report);
  }
  return report;
}

const GpuReport& Gpus() {
  static const GpuReport* const report = [] {
    GpuProbe probe;
    const char* const root = getenv("CAPSTAN_MACHINE_ROOT");
    if (root != nullptr) probe.root = root;
    const char* const seconds = getenv("CAPSTAN_GPU_SECONDS");
    double limit = 0;
    if (seconds != nullptr && absl::SimpleAtod(seconds, &limit) && limit > 0 &&
        limit < 1e6) {
      probe.limit_seconds = limit;
    }
    return new GpuReport(AskDriver(probe));
  }();
  return *report;
}

int CountGpus() { return static_cast<int>(Gpus().gpus.size()); }

int64_t FreeGpuMemory() {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Gpu& gpu : Gpus().gpus) {
    if (gpu.memory > 0) least = std::min(least, gpu.free_memory);
  }
  return least;
}

int LeastComputeCapability() {
  int least = 0;
  for (const Gpu& gpu : Gpus().gpus) {
    if (gpu.compute_capability == 0) return 0;
    least = least == 0 ? gpu.compute_capability
                       : std::min(least, gpu.compute_capability);
  }
  return least;
}

std::string GpuAllocatorSettings(const std::vector<Gpu>& gpus) {
  for (const char* own : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (getenv(own) != nullptr) return "";
  }
  const bool all = std::all_of(gpus.begin(), gpus.end(),
                               [](const Gpu& gpu) { return gpu.maps_memory; });
  return all && !gpus.empty() ? "expandable_segments:True" : "";
}

}  // namespace capstan
