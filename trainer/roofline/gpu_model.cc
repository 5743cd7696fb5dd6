// SPDX-License-Identifier: Apache-2.0
#include "trainer/roofline/gpu_model.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace {

// One direction of a x16 slot: PCI Express 4 at 16 GT/s, 5 at 32 GT/s.
constexpr double kPcie4 = 32e9, kPcie5 = 64e9;

double PcieOf(const GpuSpecs& gpu) {
  return absl::StartsWith(gpu.key, "a") ? kPcie4 : kPcie5;
}

double PeakOf(const TraceEntry& entry, const GpuSpecs& gpu) {
  switch (entry.unit) {
    case TraceUnit::kHalf:
      return gpu.bf16 > 0 ? gpu.bf16 : gpu.fp16;
    case TraceUnit::kTf32:
      return gpu.tf32 > 0 ? gpu.tf32 : gpu.fp32;
    case TraceUnit::kVector:
      break;
  }
  return gpu.fp32;
}

double FractionOf(const TraceEntry& entry, const RooflineAssumptions& assumed) {
  if (entry.unit == TraceUnit::kVector) return assumed.vectors;
  return absl::StrContains(entry.name, "attention") ? assumed.attention
                                                    : assumed.products;
}

WorkTime CollectiveTime(const TraceEntry& entry, const GpuSpecs& gpu,
                        const RooflineAssumptions& assumed) {
  const double moving =
      static_cast<double>(entry.sent) / (gpu.link * assumed.links);
  const double starting =
      assumed.collective +
      assumed.collective_rank * static_cast<double>(entry.ranks - 1);
  return {starting + moving,
          moving > starting ? Bound::kLinks : Bound::kOverhead};
}

WorkTime CopyTime(const TraceEntry& entry, const GpuSpecs& gpu,
                  const RooflineAssumptions& assumed) {
  const auto bytes = static_cast<double>(entry.bytes);
  const bool inside = entry.name == "d2d" || entry.name == "memset";
  // Within the device it reads and writes.
  const double moving = inside ? (entry.name == "d2d" ? 2 : 1) * bytes /
                                     (gpu.bandwidth * assumed.memory)
                               : bytes / (PcieOf(gpu) * assumed.pcie);
  const Bound bound = inside ? Bound::kMemory : Bound::kLinks;
  return {assumed.kernel + moving,
          moving > assumed.kernel ? bound : Bound::kOverhead};
}

}  // namespace

RooflineAssumptions AssumptionsFor(const GpuSpecs& gpu) {
  RooflineAssumptions assumed;
  const absl::string_view key = gpu.key;
  if (absl::StartsWith(key, "a100")) {
    // "FlashAttention-2" (Dao, 2023) reaches 50 to 73 % of an A100's peak.
    assumed.attention = 0.60;
    assumed.products = 0.80;
  } else if (absl::StrContains(key, "b200")) {
    assumed.attention = 0.35;
    assumed.products = 0.70;
  }
  // Else 0.40: "FlashAttention-3" (Shah et al., 2024) says that the second
  // version reaches 35 % of an H100's peak, and the third 75 %.
  return assumed;
}

WorkTime TimeOf(const TraceEntry& entry, const GpuSpecs& gpu,
                const RooflineAssumptions& assumed) {
  if (entry.kind == TraceKind::kCopy) return CopyTime(entry, gpu, assumed);
  if (entry.ranks > 1) return CollectiveTime(entry, gpu, assumed);
  const double arithmetic =
      entry.flops / (PeakOf(entry, gpu) * FractionOf(entry, assumed));
  const double memory = static_cast<double>(entry.read + entry.written) /
                        (gpu.bandwidth * assumed.memory);
  const double start = entry.graph != 0 ? assumed.in_graph : assumed.kernel;
  const double overhead =
      start * static_cast<double>(std::max<int64_t>(1, entry.launches));
  WorkTime time;
  time.seconds = std::max(arithmetic, memory) + overhead;
  if (std::max(arithmetic, memory) > overhead) {
    time.bound = arithmetic > memory ? Bound::kArithmetic : Bound::kMemory;
  }
  return time;
}

}  // namespace capstan
