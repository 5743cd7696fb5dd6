// SPDX-License-Identifier: Apache-2.0
//
// Facts of this machine and this process. Nothing here touches a GPU's driver:
// a process that has can't fork.
#ifndef CAPSTAN_BASE_MACHINE_H_
#define CAPSTAN_BASE_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

// The cores that the process may use.
int AvailableCores();

// The cores that the CPU quota of this process's control group and of those
// above it allow, rounded up; 0 where there is no quota. `proc` and `sys` stand
// for /proc and /sys. Versions 1 and 2 of control groups.
int CoresByQuota(const std::string& proc, const std::string& sys);

// Host memory that can be had, in bytes: MemAvailable of /proc/meminfo, or what
// the limits of this process's control group and of those above it leave, if
// that is less. The largest number where neither is known. Versions 1 and 2 of
// control groups.
int64_t AvailableHostMemory(const std::string& proc = "/proc",
                            const std::string& sys = "/sys");

// This process's host memory as the kernel counts it, in bytes; zeros where it
// doesn't.
struct ProcessMemory {
  int64_t resident = 0;  // now: VmRSS
  int64_t peak = 0;      // the most so far: VmHWM
  // Of `resident` what is in no file, and so is a forked child's, too: RssAnon.
  int64_t anonymous = 0;
};
ProcessMemory ReadProcessMemory();

// NVIDIA GPUs by /proc and CUDA_VISIBLE_DEVICES.
int CountGpus();

// The number of entries of `gpus_folder`, of which CUDA shows those that
// `visible`, the value of CUDA_VISIBLE_DEVICES, lists: all where it is nullptr;
// the list ends at the first entry that is no device, as in CUDA.
int CountGpusIn(const std::string& gpus_folder, const char* visible);

// A field of `nvidia-smi --query-gpu`, one value for each GPU that
// CUDA_VISIBLE_DEVICES shows; none where that doesn't say.
std::vector<std::string> QueryGpus(const std::string& field);

// The least that is free on a GPU which CUDA_VISIBLE_DEVICES shows, in bytes;
// the largest number where nvidia-smi doesn't say.
int64_t FreeGpuMemory();

// The folder that holds the file `path`, links resolved; "" if there is none.
std::string RealFolderOf(const char* path);
// That of the running program; "." if it isn't known.
std::string ExecutableFolder();
// That of the library or program which holds the function or object at
// `symbol`.
std::string LibraryFolder(const void* symbol);

}  // namespace capstan

#endif  // CAPSTAN_BASE_MACHINE_H_
