// SPDX-License-Identifier: Apache-2.0
//
// What NVIDIA's data sheets say of its GPUs.
#ifndef CAPSTAN_TRAINER_PROFILE_GPU_SPECS_H_
#define CAPSTAN_TRAINER_PROFILE_GPU_SPECS_H_

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

// Peaks are dense (without 2:4 sparsity, with which data sheets advertise twice
// as much), in FLOP/s at the boost clock; products of 16-bit numbers are those
// that sum in float32, which GeForce cards do at half the rate of float16 sums.
struct GpuSpecs {
  const char* key;   // "h100", for flags
  const char* name;  // as CUDA says it: "NVIDIA H100 80GB HBM3"
  double bf16;       // 0: the GPU has no such unit
  double fp16;
  double tf32;  // 0: as bf16
  double fp32;  // outside of tensor cores
  // Of the GPU's memory, bytes/s, and the memory in bytes, as advertised (GB).
  double bandwidth;
  double memory;
  // What it can send to the other GPUs of its machine at a time, bytes/s in one
  // direction: NVLink where the form factor has it, else PCI Express.
  double link;
  // To and from the host, bytes/s in one direction: its PCI Express slot, or
  // NVLink-C2C where it is soldered to a Grace CPU.
  double host;
};

const std::vector<GpuSpecs>& AllGpuSpecs();
// By CUDA's name or by key, exactly; null if unknown. A part of a GPU (MIG) and
// a laptop's GPU have names of their own, and other peaks.
const GpuSpecs* FindGpuSpecs(absl::string_view name_or_key);
// "a100-40gb, a100-80gb, ..", for messages.
std::string GpuKeys();

// The peak of matrix products in `compute` (kFloat, kBFloat16 or kHalf), of
// float32 by TF32 if `tf32`. 0 if the GPU has no unit for them.
double PeakFlops(const GpuSpecs& gpu, c10::ScalarType compute, bool tf32);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_GPU_SPECS_H_
