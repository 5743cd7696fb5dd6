// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/gpu_model.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "testing/roofline/collective_model.h"
#include "testing/roofline/product_model.h"

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
     "others' copies of 1 to 4 GiB reach 0.91 of an H100 NVL's"},
    {&RooflineAssumptions::links, "links between GPUs, by collectives", 0.60,
     0.80, 0.84,
     "NCCL counts 20 to 20.6 GB/s of NVLink 3 and 4's 25, 40.1 of NVLink 5's "
     "50 (src/graph/topo.h); A100s reach 0.78"},
    {&RooflineAssumptions::network, "the network's ports, by collectives", 0.50,
     0.85, 0.94,
     "NCCL's authors: 46 to 48 of 50 GB/s a port on a quiet network"},
    {&RooflineAssumptions::collective_share,
     "multiprocessors that a collective takes", 0.18, 0.12, 0.03,
     "NCCL's channels, a thread block each: 16 to 24 on NVLink 4"},
    {&RooflineAssumptions::host, "link to the host", 0.60, 0.80, 0.90,
     "assumed"},
    {&RooflineAssumptions::kernel, "a kernel's start and end, s", 4e-6, 2.5e-6,
     1.5e-6, "assumed"},
    {&RooflineAssumptions::in_graph, "the same in a graph, s", 2e-6, 1.2e-6,
     0.8e-6, "assumed"},
    {&RooflineAssumptions::enqueue, "the host, a launch, s", 12e-6, 4e-6,
     2.5e-6,
     "assumed; others measured 4.2 from Python. 9 on paper, without a driver, "
     "on two shared cores of an EPYC"},
    {&RooflineAssumptions::enqueue_event, "the host, an event, s", 2e-6, 1e-6,
     0.6e-6, "assumed"},
    {&RooflineAssumptions::enqueue_graph, "the host, a graph, s", 20e-6, 10e-6,
     6e-6, "assumed"},
    {&RooflineAssumptions::host_wait, "the host after a wait, s", 20e-6, 8e-6,
     5e-6, "assumed"},
    {&RooflineAssumptions::allocation, "cudaMalloc, cudaFree, s", 500e-6,
     150e-6, 50e-6, "assumed"},
    {&RooflineAssumptions::latencies, "collectives' latencies, of NCCL's", 2.0,
     1.0, 0.8, "collective_model.h; the range is assumed"},
};

struct Generation {
  const char* keys;  // in the names of its GPUs
  Assumption products, attention, port;
};

constexpr char kProducts[] = "products on tensor cores, best shape";
constexpr char kAttention[] = "fused attention on tensor cores";
constexpr char kPort[] = "a GPU's port to other hosts, bytes/s";
constexpr char kFlash2[] =
    "FlashAttention-2 (Dao, 2023): 50 to 73 % of an A100's peak";
constexpr char kFlash3[] =
    "FlashAttention-3 (Shah et al., 2024): version 2 reaches 35 % of an H100's "
    "peak, 3 75 %";
constexpr char kAsH100[] = "assumed, near an H100's";
// MAMF: the most that others reached over many shapes ("ml-engineering",
// accelerator), over ProductFraction of that shape.
constexpr char kMamfA100[] =
    "most reached by others: 0.859 at 6912 x 16384 x 2048; the rest assumed";
constexpr char kMamfH100[] =
    "most reached by others: 0.801 at 6144 x 17920 x 2816; cards at their "
    "power limit 0.53 to 0.64";
constexpr char kHdr[] = "DGX A100: 8 ports of 200 Gbit/s; 100 is common";
constexpr char kNdr[] = "DGX H100: 8 ports of 400 Gbit/s; 200 is common";

// The first that fits; the last fits all.
constexpr Generation kGenerations[] = {
    {"a100",
     {&RooflineAssumptions::products, kProducts, 0.74, 0.84, 0.91, kMamfA100},
     {&RooflineAssumptions::attention, kAttention, 0.50, 0.60, 0.73, kFlash2},
     {&RooflineAssumptions::port, kPort, 12.5e9, 25e9, 25e9, kHdr}},
    {"b200",
     {&RooflineAssumptions::products, kProducts, 0.56, 0.70, 0.85, kAsH100},
     {&RooflineAssumptions::attention, kAttention, 0.25, 0.35, 0.70, kAsH100},
     {&RooflineAssumptions::port, kPort, 25e9, 50e9, 50e9, kNdr}},
    {"",
     {&RooflineAssumptions::products, kProducts, 0.58, 0.70, 0.85, kMamfH100},
     {&RooflineAssumptions::attention, kAttention, 0.35, 0.40, 0.75, kFlash3},
     {&RooflineAssumptions::port, kPort, 25e9, 50e9, 50e9, kNdr}},
};

const Generation& GenerationOf(const GpuSpecs& gpu) {
  const auto* generation = kGenerations;
  while (!absl::StrContains(gpu.key, generation->keys)) ++generation;
  return *generation;
}

std::vector<Assumption> TableOf(const GpuSpecs& gpu) {
  const Generation& generation = GenerationOf(gpu);
  std::vector<Assumption> rows = {generation.products, generation.attention,
                                  generation.port};
  rows.insert(rows.end(), std::begin(kOfAll), std::end(kOfAll));
  return rows;
}

double PeakOf(const TraceEntry& entry, const GpuSpecs& gpu) {
  switch (entry.unit) {
    case TraceUnit::kHalf:
      return gpu.bf16 > 0 ? gpu.bf16 : gpu.fp16;
    case TraceUnit::kFp8:
      // In the data sheets of all GPUs that have them (Ada, Hopper, Blackwell).
      return 2.0 * gpu.bf16;
    case TraceUnit::kTf32:
      return gpu.tf32 > 0 ? gpu.tf32 : gpu.fp32;
    case TraceUnit::kVector:
      break;
  }
  return gpu.fp32;
}

double FractionOf(const TraceEntry& entry, const GpuSpecs& gpu,
                  const RooflineAssumptions& assumed) {
  if (entry.unit == TraceUnit::kVector) return assumed.vectors;
  if (absl::StrContains(entry.name, "attention")) return assumed.attention;
  return assumed.products *
         ProductFraction(entry.product, MultiprocessorsOf(gpu.key));
}

// The hosts of a collective's ranks, of which the first is rank 0.
int HostsOf(const TraceEntry& entry, const RooflineAssumptions& assumed) {
  if (assumed.gpus_of_host == 0) return 1;
  int64_t hosts = 0, last = -1;
  for (int64_t i = 0; i < entry.ranks; ++i) {
    const int64_t host = i * entry.stride / assumed.gpus_of_host;
    if (host != last) ++hosts;
    last = host;
  }
  return static_cast<int>(hosts);
}

WorkTime CollectiveWorkTime(const TraceEntry& entry, const GpuSpecs& gpu,
                            const RooflineAssumptions& assumed) {
  // Slower links than these are PCI Express.
  constexpr double kSlowestNvlink = 100e9;
  CollectiveCall call;
  if (entry.name == "nccl::all_reduce") {
    call.kind = CollectiveKind::kAllReduce;
  } else if (entry.name == "nccl::all_to_all") {
    call.kind = CollectiveKind::kAllToAll;
  }
  call.sent = static_cast<double>(entry.sent);
  call.ranks = static_cast<int>(entry.ranks);
  call.hosts = HostsOf(entry, assumed);
  CollectiveLinks links;
  links.inside = gpu.link * assumed.links;
  links.network = assumed.port * assumed.network;
  links.nvlink = gpu.link > kSlowestNvlink;
  // Cards with bridges have no switch.
  links.multicast = gpu.link >= 450e9 && !absl::StrContains(gpu.key, "nvl");
  const CollectiveTime time = TimeOf(call, links, assumed.latencies);
  return {time.seconds(),
          time.moving > time.latency ? Bound::kLinks : Bound::kOverhead};
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
  if (entry.ranks > 1) return CollectiveWorkTime(entry, gpu, assumed);
  const double arithmetic =
      entry.flops / (PeakOf(entry, gpu) * FractionOf(entry, gpu, assumed));
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
