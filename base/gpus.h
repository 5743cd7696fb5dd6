// SPDX-License-Identifier: Apache-2.0
//
// The GPUs that CUDA shows this process, and what is wrong with them. The
// driver is asked in a child process that ends then: a process that has touched
// the driver itself can't fork, and a driver that hangs or crashes must not
// take the trainer along.
#ifndef CAPSTAN_BASE_GPUS_H_
#define CAPSTAN_BASE_GPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// A GPU, or a MIG instance of one.
struct Gpu {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  // As `nvidia-smi -L` lists it, "GPU-.." or "MIG-.."; empty: unknown.
  std::string uuid;
  std::string bus_id;          // of PCI, "0000:17:00.0"; empty: unknown
  int compute_capability = 0;  // 90 is 9.0; 0: unknown
  // Whether its memory can be mapped to reserved addresses (cuMemMap).
  bool maps_memory = false;
  int64_t memory = 0;  // bytes in all; 0: unknown
  // Bytes free when the driver was asked, the process's own CUDA context
  // included; all of it where NVML isn't there.
  int64_t free_memory = 0;
};

struct GpuReport {
  // In CUDA's order: as CUDA_VISIBLE_DEVICES (indices, UUIDs, MIG names) and
  // CUDA_DEVICE_ORDER say.
  std::vector<Gpu> gpus;
  // Those of the machine by /proc, also those that this process may not use; 0
  // where /proc doesn't say (WSL2, some containers).
  int on_machine = 0;
  int cuda_version = 0;        // the newest that the driver can, 13000; 0: none
  std::string driver_version;  // "580.65.06"; empty: unknown
  // FAILED_PRECONDITION if there are GPUs that should be used and can't be: the
  // message says why and what to do. `gpus` is empty then.
  absl::Status status;
  // What a user would want to know, though nothing is wrong; may be empty.
  std::string note;
};

// How to ask.
struct GpuProbe {
  std::string root;  // prefix of /proc, /dev and /usr, for tests
  // The driver's time to answer. Without persistence mode it takes seconds for
  // each GPU.
  double limit_seconds = 60.0;
};

// Asks the driver, anew. Costs a few system calls where there is none, and
// where CUDA_VISIBLE_DEVICES shows no GPU by choice (empty, -1); else a child
// process.
GpuReport AskDriver(const GpuProbe& probe);

// The same, asked once in a process and its children. Variables:
// CAPSTAN_GPU_SECONDS is the driver's time to answer, CAPSTAN_MACHINE_ROOT the
// root, for tests.
const GpuReport& Gpus();

// How many GPUs a run would use: Gpus().gpus.size().
int CountGpus();

// Least free memory of a visible GPU in bytes, as Gpus() found it; INT64_MAX
// without one.
int64_t FreeGpuMemory();

// Least compute capability of a visible GPU (80 is 8.0); 0: unknown.
int LeastComputeCapability();

// The settings for LibTorch's allocator of GPU memory before its first use:
// segments that grow (expandable_segments), which leave no gaps that are too
// small between them, where all of `gpus` map memory. "": none, also if the
// user's environment has settings.
std::string GpuAllocatorSettings(const std::vector<Gpu>& gpus);

// Opens the driver's library, libcuda.so.1, for this process: also where the
// loader wouldn't look (WSL2). Null, and why in *error, if it isn't there.
void* OpenDriverLibrary(const std::string& root, std::string* error);

}  // namespace capstan

#endif  // CAPSTAN_BASE_GPUS_H_
