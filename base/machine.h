// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_MACHINE_H_
#define CAPSTAN_BASE_MACHINE_H_

#include <string>

namespace capstan {

// This machine's cores that the process may use.
int AvailableCores();

// NVIDIA GPUs by /proc and CUDA_VISIBLE_DEVICES, without touching the driver's
// library (a process that has can't fork).
int CountGpus();

// Cores that the CPU quota of this process's control group and of those above
// it allow, rounded up; 0 where there is no quota. `proc` and `sys` stand for
// /proc and /sys. Versions 1 and 2 of control groups.
int CoresByQuota(const std::string& proc, const std::string& sys);

// The number of entries of `gpus_folder`, of which CUDA shows those that
// `visible`, the value of CUDA_VISIBLE_DEVICES, lists: all where it is nullptr;
// the list ends at the first entry that is no device, as in CUDA.
int CountGpusIn(const std::string& gpus_folder, const char* visible);

}  // namespace capstan

#endif  // CAPSTAN_BASE_MACHINE_H_
