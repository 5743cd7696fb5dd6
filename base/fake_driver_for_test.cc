// SPDX-License-Identifier: Apache-2.0
//
// A driver for tests, libcuda.so.1 and libnvidia-ml.so.1 in one, as told by the
// variable CAPSTAN_FAKE_DRIVER, settings separated by commas:
//   gpus=N         how many cards (1)
//   mig            each card is one MIG instance
//   cuda=12040     the newest CUDA it can (13000)
//   driver=TEXT    its version (580.65.06)
//   init=CODE      what cuInit returns (0)
//   hang=FUNCTION  that function never returns
//   crash=FUNCTION that function crashes
//   touched=FILE   made by any call, to see who called
// and what NVML says of the last card, if it isn't well:
//   ecc=N          uncorrected errors (0)
//   slowed=MASK    reasons of its clocks (0)
//   rows           damaged memory waits for its replacement
//   lanes=N        of its 16 of PCIe (16)
//   nvlinks=N      active ones of 18 (18)
//   no_peer        it can't read the others' memory
//   lost           it doesn't answer
//   process=PID    holds 30 GiB of it
// CUDA_VISIBLE_DEVICES is taken as CUDA takes it: indices and beginnings of
// UUIDs, up to the first that isn't there.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kNvmlNotFound = 6;
constexpr int kNvmlLost = 15;
constexpr unsigned long long kMemory = 80ull << 30;

std::vector<std::string> Words(const char* text) {
  std::vector<std::string> words;
  std::istringstream stream(text == nullptr ? "" : text);
  for (std::string word; std::getline(stream, word, ',');) {
    words.push_back(word);
  }
  return words;
}

std::string Setting(const std::string& name, const std::string& absent) {
  for (const std::string& word : Words(getenv("CAPSTAN_FAKE_DRIVER"))) {
    if (word == name) return "1";
    if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  }
  return absent;
}

void Called(const char* function) {
  const std::string touched = Setting("touched", "");
  if (!touched.empty()) {
    close(open(touched.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  }
  if (Setting("hang", "") == function) {
    while (true) pause();
  }
  if (Setting("crash", "") == function) raise(SIGSEGV);
}

std::string UuidOf(int card) {
  char text[64];
  std::snprintf(text, sizeof(text),
                "%s-%02x000000-0000-0000-0000-0000000000%02x",
                Setting("mig", "").empty() ? "GPU" : "MIG", 0xa0 + card, card);
  return text;
}

// The cards that CUDA shows, in its order.
std::vector<int> Shown() {
  const int cards = std::stoi(Setting("gpus", "1"));
  const char* const visible = getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> shown;
  if (visible == nullptr) {
    for (int card = 0; card < cards; ++card) shown.push_back(card);
    return shown;
  }
  for (const std::string& word : Words(visible)) {
    int found = -1;
    for (int card = 0; card < cards; ++card) {
      if (word == std::to_string(card) ||
          (word.size() > 4 && UuidOf(card).rfind(word, 0) == 0)) {
        found = card;
      }
    }
    if (found < 0) break;
    // As CUDA.
    if (std::count(shown.begin(), shown.end(), found) > 0) return {};
    shown.push_back(found);
  }
  return shown;
}

int Put(const std::string& text, char* out, int size) {
  std::snprintf(out, size, "%s", text.c_str());
  return 0;
}

// A setting of the last card; others have what is usual.
std::string OfLast(void* device, const std::string& name,
                   const std::string& usual) {
  return reinterpret_cast<intptr_t>(device) == std::stoi(Setting("gpus", "1"))
             ? Setting(name, usual)
             : usual;
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  Called("cuDriverGetVersion");
  *version = std::stoi(Setting("cuda", "13000"));
  return 0;
}

int cuInit(unsigned) {
  Called("cuInit");
  const int result = std::stoi(Setting("init", "0"));
  if (result != 0) return result;
  return Shown().empty() ? kNoDevice : 0;
}

int cuDeviceGetCount(int* count) {
  Called("cuDeviceGetCount");
  *count = static_cast<int>(Shown().size());
  return 0;
}

int cuDeviceGet(int* device, int index) {
  if (index < 0 || index >= static_cast<int>(Shown().size())) {
    return kInvalidDevice;
  }
  *device = Shown()[index];
  return 0;
}

int cuDeviceGetName(char* name, int size, int device) {
  Called("cuDeviceGetName");
  return Put("NVIDIA Fake " + std::to_string(device), name, size);
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  // Compute capability 9.0; virtual memory.
  *value = attribute == 75 ? 9 : attribute == 102 ? 1 : 0;
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = kMemory;
  return 0;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<unsigned char>(0xa0 + device);
  uuid[15] = static_cast<unsigned char>(device);
  return 0;
}

int cuDeviceGetPCIBusId(char* id, int size, int device) {
  return Put("0000:0" + std::to_string(device + 1) + ":00.0", id, size);
}

int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case 34:
      *name = "CUDA_ERROR_STUB_LIBRARY";
      return 0;
    case kNoDevice:
      *name = "CUDA_ERROR_NO_DEVICE";
      return 0;
    case 802:
      *name = "CUDA_ERROR_SYSTEM_NOT_READY";
      return 0;
    case 803:
      *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
      return 0;
    case 999:
      *name = "CUDA_ERROR_UNKNOWN";
      return 0;
    default:
      return 1;
  }
}

int nvmlInit_v2() {
  Called("nvmlInit");
  return 0;
}

int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  return Put(Setting("driver", "580.65.06"), version, static_cast<int>(size));
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const int cards = std::stoi(Setting("gpus", "1"));
  for (int card = 0; card < cards; ++card) {
    if (UuidOf(card) != uuid) continue;
    *device = reinterpret_cast<void*>(static_cast<intptr_t>(card) + 1);
    return 0;
  }
  return kNvmlNotFound;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(std::stoi(Setting("gpus", "1")));
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<intptr_t>(index) + 1);
  return 0;
}

int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  const int card = static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1;
  return cuDeviceGetName(name, static_cast<int>(size), card);
}

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  const int card = static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1;
  return Put(UuidOf(card), uuid, static_cast<int>(size));
}

int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) {
  *celsius = 41;
  return 0;
}

int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 71500;
  return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}

int nvmlDeviceGetUtilizationRates(void*, unsigned* percent) {
  percent[0] = 12;
  percent[1] = 3;
  return 0;
}

int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) {
  *mhz = 345;
  return 0;
}

int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device,
                                              unsigned long long* reasons) {
  *reasons = std::stoull(OfLast(device, "slowed", "0"));
  return 0;
}

int nvmlDeviceGetTotalEccErrors(void* device, int, int,
                                unsigned long long* errors) {
  *errors = std::stoull(OfLast(device, "ecc", "0"));
  return 0;
}

int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected,
                              unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = *uncorrected = *failed = 0;
  *pending = OfLast(device, "rows", "").empty() ? 0 : 1;
  return 0;
}

int nvmlDeviceGetPersistenceMode(void*, int* mode) {
  *mode = 1;
  return 0;
}

int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* lanes) {
  *lanes = static_cast<unsigned>(std::stoi(OfLast(device, "lanes", "16")));
  return 0;
}

int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) {
  *lanes = 16;
  return 0;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  *active = static_cast<int>(link) < std::stoi(OfLast(device, "nvlinks", "18"));
  return 0;
}

int nvmlDeviceGetP2PStatus(void* device, void*, int, int* status) {
  *status = OfLast(device, "no_peer", "").empty() ? 0 : 3;
  return 0;
}

// nvmlProcessInfo_t.
struct FakeProcess {
  unsigned pid;
  unsigned long long bytes;
  unsigned instances[2];
};

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count,
                                            FakeProcess* processes) {
  const std::string pid = OfLast(device, "process", "");
  *count = pid.empty() ? 0 : 1;
  if (!pid.empty()) {
    processes[0] = {static_cast<unsigned>(std::stoi(pid)), 30ull << 30, {}};
  }
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  const auto card = reinterpret_cast<intptr_t>(device) - 1;
  if (!OfLast(device, "lost", "").empty()) return kNvmlLost;
  memory[0] = kMemory;
  memory[1] = kMemory - ((static_cast<unsigned long long>(card) + 1) << 30);
  if (!OfLast(device, "process", "").empty()) memory[1] -= 30ull << 30;
  memory[2] = kMemory - memory[1];
  return 0;
}

}  // extern "C"
