// SPDX-License-Identifier: Apache-2.0
#include "base/gpu_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace {

// What is asked of a library, by the name that its header gives it. A missing
// function is null, and what it would tell unknown.
template <typename Function>
Function* Find(void* library, const char* name) {
  return library == nullptr ? nullptr
                            : reinterpret_cast<Function*>(dlsym(library, name));
}

// CUuuid of cuda.h.
struct Uuid {
  unsigned char bytes[16];
};

// CUdevice_attribute.
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr int kVirtualMemoryManagement = 102;

// The loader's, or under a test's `root` that of a system without its cache.
void* Open(const std::string& root, const std::string& name,
           std::string* error) {
  const std::string usual = root.empty() ? name : root + "/usr/lib/" + name;
  void* library = dlopen(usual.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library != nullptr) return library;
  const char* problem = dlerror();
  *error = problem == nullptr ? "unknown error of the dynamic loader" : problem;
  // Windows puts it there; the loader knows by its cache only.
  return dlopen(absl::StrCat(root, "/usr/lib/wsl/lib/", name).c_str(),
                RTLD_NOW | RTLD_GLOBAL);
}

class Teller {
 public:
  explicit Teller(int out) : out_(out) {}

  // Tabs separate fields, which hold none.
  void Tell(const std::vector<std::string>& fields) {
    std::string line;
    for (const std::string& field : fields) {
      if (!line.empty()) line += '\t';
      std::replace_copy_if(
          field.begin(), field.end(), std::back_inserter(line),
          [](char c) { return c == '\t' || c == '\n'; }, ' ');
    }
    line += '\n';
    // To a pipe, and far less than fits in one.
    const ssize_t written = write(out_, line.data(), line.size());
    static_cast<void>(written);
  }
  void At(const std::string& stage) { Tell({"at", stage}); }

 private:
  const int out_;
};

std::string UuidText(const Uuid& uuid) {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", uuid.bytes[i]);
    text += digits;
  }
  return text;
}

std::string DriverVersion(const Nvml& nvml) {
  char text[96] = "";
  return nvml.Call("nvmlSystemGetDriverVersion", &text[0],
                   unsigned{sizeof(text)})
             ? text
             : "";
}

// Of the device whose UUID is `prefix` and gpu->uuid: takes what is known.
bool Take(const Nvml& nvml, const char* prefix, Gpu* gpu) {
  const std::string uuid = prefix + gpu->uuid;
  void* device = nullptr;
  if (!nvml.Call("nvmlDeviceGetHandleByUUID", uuid.c_str(), &device)) {
    return false;
  }
  gpu->uuid = uuid;
  NvmlMemory memory = {};
  if (nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory)) {
    gpu->free_memory = static_cast<int64_t>(memory.free);
  }
  return true;
}

Gpu GpuAt(void* cuda, int device) {
  Gpu gpu;
  char text[256] = "";
  const auto name_of = Find<int(char*, int, int)>(cuda, "cuDeviceGetName");
  if (name_of != nullptr && name_of(text, sizeof(text), device) == 0) {
    gpu.name = text;
  }
  const auto attribute =
      Find<int(int*, int, int)>(cuda, "cuDeviceGetAttribute");
  int major = 0;
  int minor = 0;
  if (attribute != nullptr &&
      attribute(&major, kCapabilityMajor, device) == 0 &&
      attribute(&minor, kCapabilityMinor, device) == 0) {
    gpu.compute_capability = 10 * major + minor;
  }
  int maps = 0;
  gpu.maps_memory = attribute != nullptr &&
                    attribute(&maps, kVirtualMemoryManagement, device) == 0 &&
                    maps != 0;
  const auto memory_of = Find<int(size_t*, int)>(cuda, "cuDeviceTotalMem_v2");
  size_t bytes = 0;
  if (memory_of != nullptr && memory_of(&bytes, device) == 0) {
    gpu.memory = static_cast<int64_t>(bytes);
    gpu.free_memory = gpu.memory;
  }
  // The second version gives a MIG instance's own, the first its GPU's.
  auto uuid_of = Find<int(Uuid*, int)>(cuda, "cuDeviceGetUuid_v2");
  if (uuid_of == nullptr) {
    uuid_of = Find<int(Uuid*, int)>(cuda, "cuDeviceGetUuid");
  }
  Uuid uuid = {};
  if (uuid_of != nullptr && uuid_of(&uuid, device) == 0) {
    gpu.uuid = UuidText(uuid);
  }
  const auto bus_of = Find<int(char*, int, int)>(cuda, "cuDeviceGetPCIBusId");
  if (bus_of != nullptr && bus_of(text, sizeof(text), device) == 0) {
    gpu.bus_id = text;
  }
  return gpu;
}

// Tells of an error of `stage`, which is the last thing to tell.
void TellError(void* cuda, int error, Teller* teller) {
  const auto name_of = Find<int(int, const char**)>(cuda, "cuGetErrorName");
  const char* name = nullptr;
  if (name_of == nullptr || name_of(error, &name) != 0 || name == nullptr) {
    name = "CUresult";
  }
  teller->Tell({"error", absl::StrCat(error), name});
  teller->Tell({"end"});
}

void TellDevices(void* cuda, const Nvml& nvml, Teller* teller) {
  const auto count_of = Find<int(int*)>(cuda, "cuDeviceGetCount");
  const auto device_of = Find<int(int*, int)>(cuda, "cuDeviceGet");
  int count = 0;
  teller->At("cuDeviceGetCount");
  const int error = count_of == nullptr ? -1 : count_of(&count);
  if (error != 0) return TellError(cuda, error, teller);
  for (int i = 0; i < count; ++i) {
    int device = i;
    teller->At(absl::StrCat("questions about GPU ", i));
    const int error = device_of == nullptr ? 0 : device_of(&device, i);
    if (error != 0) return TellError(cuda, error, teller);
    Gpu gpu = GpuAt(cuda, device);
    if (!gpu.uuid.empty() && !Take(nvml, "GPU-", &gpu) &&
        !Take(nvml, "MIG-", &gpu)) {
      gpu.uuid = "GPU-" + gpu.uuid;
    }
    teller->Tell({"gpu", gpu.name, gpu.uuid, gpu.bus_id,
                  absl::StrCat(gpu.compute_capability),
                  absl::StrCat(gpu.memory), absl::StrCat(gpu.free_memory),
                  gpu.maps_memory ? "maps" : ""});
  }
  teller->Tell({"end"});
}

}  // namespace

Nvml::Nvml(const std::string& root) {
  std::string unused;
  library_ = Open(root, "libnvidia-ml.so.1", &unused);
}

bool Nvml::Init() {
  if (!Call("nvmlInit_v2")) library_ = nullptr;
  return library_ != nullptr;
}

void* OpenDriverLibrary(const std::string& root, std::string* error) {
  return Open(root, "libcuda.so.1", error);
}

void TellAboutDriver(const std::string& root, int out) {
  Teller teller(out);
  teller.At("loading libcuda.so.1");
  std::string error;
  void* const cuda = OpenDriverLibrary(root, &error);
  if (cuda == nullptr) {
    teller.Tell({"no_library", error});
    teller.Tell({"end"});
    return;
  }
  Nvml nvml(root);
  teller.At("nvmlInit");
  nvml.Init();
  teller.Tell({"driver", DriverVersion(nvml)});
  teller.At("cuDriverGetVersion");
  int version = 0;
  const auto version_of = Find<int(int*)>(cuda, "cuDriverGetVersion");
  if (version_of != nullptr && version_of(&version) == 0) {
    teller.Tell({"cuda", absl::StrCat(version)});
  }
  teller.At("cuInit");
  const auto init = Find<int(unsigned)>(cuda, "cuInit");
  const int result = init == nullptr ? -1 : init(0);
  if (result != 0) return TellError(cuda, result, &teller);
  TellDevices(cuda, nvml, &teller);
}

DriverAnswer ParseDriverAnswer(const std::string& text) {
  DriverAnswer answer;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    std::vector<std::string> fields = absl::StrSplit(line, '\t');
    fields.resize(std::max<size_t>(fields.size(), 8));
    const std::string& what = fields[0];
    if (what == "at") answer.stage = fields[1];
    if (what == "end") answer.complete = true;
    if (what == "no_library") answer.no_library = fields[1];
    if (what == "driver") answer.driver_version = fields[1];
    if (what == "cuda" && !absl::SimpleAtoi(fields[1], &answer.cuda_version)) {
      answer.cuda_version = 0;
    }
    if (what == "error") {
      answer.error_name = fields[2];
      if (!absl::SimpleAtoi(fields[1], &answer.error)) answer.error = -1;
    }
    if (what != "gpu") continue;
    Gpu gpu;
    gpu.name = fields[1];
    gpu.uuid = fields[2];
    gpu.bus_id = fields[3];
    gpu.maps_memory = fields[7] == "maps";
    if (absl::SimpleAtoi(fields[4], &gpu.compute_capability) &&
        absl::SimpleAtoi(fields[5], &gpu.memory) &&
        absl::SimpleAtoi(fields[6], &gpu.free_memory)) {
      answer.gpus.push_back(gpu);
    }
  }
  return answer;
}

}  // namespace capstan
