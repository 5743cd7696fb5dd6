// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/gpu_model.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan {
namespace {

// A row of what is assumed. Bad luck is `bad`, be it a small fraction or a long
// time.
struct Assumption {
  double RooflineAssumptions::*what;
  const char* title;
  double bad, likely, good;
  const char* source;
};

// Of every GPU; the rows of kOfGeneration stand before them.
constexpr Assumption kOfAll[] = {
    {&RooflineAssumptions::vectors, "arithmetic outside of tensor cores", 0.40,
     0.60, 0.80, "assumed"},
    {&RooflineAssumptions::memory, "memory's bandwidth", 0.75, 0.85, 0.93,
     "assumed"},
    {&RooflineAssumptions::links, "links between GPUs, by collectives", 0.60,
     0.78, 0.88, "assumed"},
    {&RooflineAssumptions::host, "link to the host", 0.60, 0.80, 0.90,
     "assumed"},
    {&RooflineAssumptions::kernel, "a kernel's start and end, s", 4e-6, 2.5e-6,
     1.5e-6, "assumed"},
    {&RooflineAssumptions::in_graph, "the same in a graph, s", 2e-6, 1.2e-6,
     0.8e-6, "assumed"},
    {&RooflineAssumptions::enqueue, "the host, a launch, s", 8e-6, 4e-6, 2.5e-6,
     "assumed"},
    {&RooflineAssumptions::enqueue_event, "the host, an event, s", 2e-6, 1e-6,
     0.6e-6, "assumed"},
    {&RooflineAssumptions::enqueue_graph, "the host, a graph, s", 20e-6, 10e-6,
     6e-6, "assumed"},
    {&RooflineAssumptions::host_wait, "the host after a wait, s", 20e-6, 8e-6,
     5e-6, "assumed"},
    {&RooflineAssumptions::allocation, "cudaMalloc, cudaFree, s", 500e-6,
     150e-6, 50e-6, "assumed"},
    {&RooflineAssumptions::collective, "a collective's start, s", 25e-6, 12e-6,
     8e-6, "assumed"},
    {&RooflineAssumptions::collective_rank, "and for each other rank, s", 4e-6,
     2e-6, 1e-6, "assumed"},
};

struct Generation {
  const char* keys;  // in the names of its GPUs
  Assumption products, attention;
};

constexpr char kProducts[] = "products on tensor cores";
constexpr char kAttention[] = "fused attention on tensor cores";
constexpr char kFlash2[] =
    "FlashAttention-2 (Dao, 2023): 50 to 73 % of an A100's peak";
constexpr char kFlash3[] =
    "FlashAttention-3 (Shah et al., 2024): version 2 reaches 35 % of an H100's "
    "peak, 3 75 %";
constexpr char kAsH100[] = "assumed, near an H100's";

// The first that fits; the last fits all.
constexpr Generation kGenerations[] = {
    {"a100",
     {&RooflineAssumptions::products, kProducts, 0.70, 0.80, 0.88, "assumed"},
     {&RooflineAssumptions::attention, kAttention, 0.50, 0.60, 0.73, kFlash2}},
    {"b200",
     {&RooflineAssumptions::products, kProducts, 0.55, 0.70, 0.80, "assumed"},
     {&RooflineAssumptions::attention, kAttention, 0.25, 0.35, 0.70, kAsH100}},
    {"",
     {&RooflineAssumptions::products, kProducts, 0.60, 0.72, 0.80, "assumed"},
     {&RooflineAssumptions::attention, kAttention, 0.35, 0.40, 0.75, kFlash3}},
};

const Generation& GenerationOf(const GpuSpecs& gpu) {
  const auto* generation = kGenerations;
  while (!absl::StrContains(gpu.key, generation->keys)) ++generation;
  return *generation;
}

std::vector<Assumption> TableOf(const GpuSpecs& gpu) {
  const Generation& generation = GenerationOf(gpu);
  std::vector<Assumption> rows = {generation.products, generation.attention};
  rows.insert(rows.end(), std::begin(kOfAll), std::end(kOfAll));
  return rows;
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
                               : bytes / (gpu.host * assumed.host);
  const Bound bound = inside ? Bound::kMemory : Bound::kLinks;
  return {assumed.kernel + moving,
          moving > assumed.kernel ? bound : Bound::kOverhead};
}

}  // namespace

RooflineAssumptions AssumptionsFor(const GpuSpecs& gpu, Luck luck) {
  RooflineAssumptions assumed;
  for (const Assumption& row : TableOf(gpu)) {
    assumed.*row.what = luck == Luck::kBad    ? row.bad
                        : luck == Luck::kGood ? row.good
                                              : row.likely;
  }
  return assumed;
}

std::string AssumptionsText(const GpuSpecs& gpu) {
  std::string text = absl::StrFormat("%-36s %9s %9s %9s  %s\n",
                                     absl::StrCat("assumed of ", gpu.key),
                                     "bad luck", "likely", "good luck", "from");
  for (const Assumption& row : TableOf(gpu)) {
    absl::StrAppendFormat(&text, "%-36s %9.3g %9.3g %9.3g  %s\n", row.title,
                          row.bad, row.likely, row.good, row.source);
  }
  return text;
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
