// SPDX-License-Identifier: Apache-2.0
//
// Facts about this machine and process. GPUs: gpus.h.
#ifndef CAPSTAN_BASE_MACHINE_H_
#define CAPSTAN_BASE_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

// Cores that the process may use.
int AvailableCores();

// Cores allowed by the CPU quota of this process's control groups (cgroups v1
// and v2), rounded up; 0 without a quota. `proc`, `sys`: /proc and /sys.
int CoresByQuota(const std::string& proc, const std::string& sys);

// Available host memory in bytes: MemAvailable in /proc/meminfo or what the
// control groups' limits leave, if less. INT64_MAX if neither is known.
int64_t AvailableHostMemory(const std::string& proc = "/proc",
                            const std::string& sys = "/sys");

// Memory of the host in bytes, RAM and swap, or what the control groups' limits
// allow of it, whatever is free of it now. INT64_MAX if it isn't known.
int64_t HostMemory(const std::string& proc = "/proc",
                   const std::string& sys = "/sys");

// This process's host memory in bytes, as the kernel counts it; zeros where
// unknown.
struct ProcessMemory {
  int64_t resident = 0;  // now: VmRSS
  int64_t peak = 0;      // high-water mark: VmHWM
  // The part of `resident` not backed by files, hence shared with forked
  // children: RssAnon.
  int64_t anonymous = 0;
};
ProcessMemory ReadProcessMemory();

// Of a file such as /proc has: the first line, "" if there is none, and the
// number after `name` in lines "name number ..", or 0.
std::string FirstLineIn(const std::string& path);
int64_t NumberAfter(const std::string& path, const std::string& name);

// The folder containing `path`, symlinks resolved; "" if there is none.
std::string RealFolderOf(const char* path);
// The running program's folder; "." if unknown.
std::string ExecutableFolder();
// The folder of the library or program that contains `symbol`.
std::string LibraryFolder(const void* symbol);

}  // namespace capstan

#endif  // CAPSTAN_BASE_MACHINE_H_
