// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/cores.h"

#include <dlfcn.h>
#include <errno.h>
#include <glog/logging.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "cluster/launch/environment.h"

namespace capstan {
namespace {

// A smaller share isn't set apart.
constexpr int kFewestCores = 4;

constexpr unsigned kNvidia = 0x10de;  // PCI's number for the vendor
constexpr unsigned kDisplay = 0x03;   // PCI's base class of GPUs

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
// Processors.
using Cpus = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

Cpus Empty() { return Cpus(hwloc_bitmap_alloc()); }

Cpus Both(hwloc_const_bitmap_t a, hwloc_const_bitmap_t b) {
  Cpus both = Empty();
  hwloc_bitmap_and(both.get(), a, b);
  return both;
}

void Add(const Cpus& more, Cpus* to) {
  hwloc_bitmap_or(to->get(), to->get(), more.get());
}

bool Same(const Cpus& a, hwloc_const_bitmap_t b) {
  return hwloc_bitmap_isequal(a.get(), b) != 0;
}

Cpus FromSet(const std::set<int>& numbers) {
  Cpus cpus = Empty();
  for (const int number : numbers) hwloc_bitmap_set(cpus.get(), number);
  return cpus;
}

std::set<int> ToSet(hwloc_const_bitmap_t cpus) {
  std::set<int> numbers;
  for (int i = hwloc_bitmap_first(cpus); i >= 0;
       i = hwloc_bitmap_next(cpus, i)) {
    numbers.insert(i);
  }
  return numbers;
}

// "0-7,64-71"
std::string ListText(hwloc_const_bitmap_t bitmap) {
  char* text = nullptr;
  if (hwloc_bitmap_list_asprintf(&text, bitmap) < 0) return "";
  const std::string list = text;
  free(text);
  return list;
}

std::vector<hwloc_obj_t> ObjectsOf(hwloc_topology_t topology,
                                   hwloc_obj_type_t type) {
  std::vector<hwloc_obj_t> objects;
  for (hwloc_obj_t next = hwloc_get_next_obj_by_type(topology, type, nullptr);
       next != nullptr;
       next = hwloc_get_next_obj_by_type(topology, type, next)) {
    objects.push_back(next);
  }
  return objects;
}

// Returns the processors of `mask` by core, in the machine's order.
std::vector<Cpus> CoresIn(hwloc_topology_t topology, const Cpus& mask) {
  std::vector<hwloc_obj_t> objects = ObjectsOf(topology, HWLOC_OBJ_CORE);
  // Some virtual machines don't tell cores.
  if (objects.empty()) objects = ObjectsOf(topology, HWLOC_OBJ_PU);
  std::vector<Cpus> cores;
  for (const hwloc_obj_t object : objects) {
    Cpus core = Both(object->cpuset, mask.get());
    if (hwloc_bitmap_iszero(core.get()) == 0) cores.push_back(std::move(core));
  }
  return cores;
}

// Returns the system's numbers of the NUMA nodes that have any of `cpus`.
Cpus NodesOf(hwloc_topology_t topology, const Cpus& cpus) {
  Cpus nodes = Empty();
  hwloc_cpuset_to_nodeset(topology, cpus.get(), nodes.get());
  return nodes;
}

// The cores of `mask` by NUMA node. Nodes of other memory beside the same cores
// don't count twice.
std::vector<std::vector<Cpus>> CoresByNode(hwloc_topology_t topology,
                                           const Cpus& mask) {
  std::vector<std::vector<Cpus>> nodes;
  Cpus left = Cpus(hwloc_bitmap_dup(mask.get()));
  for (const hwloc_obj_t node : ObjectsOf(topology, HWLOC_OBJ_NUMANODE)) {
    if (node->cpuset == nullptr) continue;
    const Cpus here = Both(node->cpuset, left.get());
    if (hwloc_bitmap_iszero(here.get()) != 0) continue;
    hwloc_bitmap_andnot(left.get(), left.get(), here.get());
    nodes.push_back(CoresIn(topology, here));
  }
  return nodes;
}

// Divides the cores into `ranks` shares of at least one core, as equal as
// possible. A share lies in one node if it fits into one; the others get the
// remaining cores.
std::vector<Cpus> EqualShares(const std::vector<std::vector<Cpus>>& nodes,
                              int ranks) {
  size_t cores = 0;
  for (const auto& node : nodes) cores += node.size();
  std::vector<size_t> used(nodes.size(), 0);
  std::vector<Cpus> shares;
  std::vector<int> split;
  const auto size_of = [&](int rank) {
    return cores / ranks + (static_cast<size_t>(rank) < cores % ranks ? 1 : 0);
  };
  for (int rank = 0; rank < ranks; ++rank) {
    const size_t size = size_of(rank);
    Cpus& share = shares.emplace_back(Empty());
    size_t k = 0;
    while (k < nodes.size() && nodes[k].size() - used[k] < size) ++k;
    if (k == nodes.size()) {
      split.push_back(rank);
      continue;
    }
    for (size_t i = 0; i < size; ++i) Add(nodes[k][used[k]++], &share);
  }
  size_t k = 0;
  for (const int rank : split) {
    for (size_t i = 0; i < size_of(rank); ++i) {
      while (used[k] == nodes[k].size()) ++k;
      Add(nodes[k][used[k]++], &shares[rank]);
    }
  }
  return shares;
}

int CountCores(hwloc_topology_t topology, const Cpus& cpus) {
  return static_cast<int>(CoresIn(topology, cpus).size());
}

// Returns the processors of `mask` on the NUMA nodes of `cpus`.
Cpus WholeNodes(hwloc_topology_t topology, const Cpus& cpus, const Cpus& mask) {
  Cpus whole = Empty();
  hwloc_cpuset_from_nodeset(topology, whole.get(),
                            NodesOf(topology, cpus).get());
  return Both(whole.get(), mask.get());
}

struct Choice {
  Cpus cpus;        // empty: none
  bool own = true;  // no other rank has any of them
};

Choice NoChoice() { return {Empty(), false}; }

Choice EqualShare(hwloc_topology_t topology, const Cpus& mask,
                  const CoreRequest& request) {
  const std::vector<std::vector<Cpus>> nodes = CoresByNode(topology, mask);
  if (nodes.size() < 2 ||
      CountCores(topology, mask) <= request.local_world_size) {
    return NoChoice();
  }
  Cpus share = std::move(
      EqualShares(nodes, request.local_world_size)[request.local_rank]);
  if (CountCores(topology, share) >= kFewestCores) return {std::move(share)};
  return {WholeNodes(topology, share, mask), false};
}

bool IsGpu(hwloc_obj_t device) {
  return device->attr->pcidev.vendor_id == kNvidia &&
         device->attr->pcidev.class_id >> 8 == kDisplay;
}

Choice NearGpu(hwloc_topology_t topology, const Cpus& mask,
               const CoreRequest& request) {
  const hwloc_obj_t gpu =
      hwloc_get_pcidev_by_busidstring(topology, request.gpu_bus_id.c_str());
  if (gpu == nullptr) return NoChoice();
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, gpu);
  Cpus near = Both(place->cpuset, mask.get());
  // All of it, as on one NUMA node, or none.
  if (Same(near, mask.get()) || hwloc_bitmap_iszero(near.get()) != 0) {
    return NoChoice();
  }
  std::vector<hwloc_obj_t> gpus;
  for (const hwloc_obj_t other : ObjectsOf(topology, HWLOC_OBJ_PCI_DEVICE)) {
    if (other == gpu || (IsGpu(other) && hwloc_get_non_io_ancestor_obj(
                                             topology, other) == place)) {
      gpus.push_back(other);
    }
  }
  const size_t index = std::find(gpus.begin(), gpus.end(), gpu) - gpus.begin();
  const std::vector<Cpus> cores = CoresIn(topology, near);
  const size_t count = gpus.size();
  if (!Same(mask, hwloc_get_root_obj(topology)->cpuset) ||
      cores.size() / count < static_cast<size_t>(kFewestCores)) {
    return {std::move(near), false};
  }
  Cpus share = Empty();
  for (size_t i = index * cores.size() / count;
       i < (index + 1) * cores.size() / count; ++i) {
    Add(cores[i], &share);
  }
  return {std::move(share)};
}

// While alive, hwloc finds no plugins: Debian's would start OpenCL and X.
class WithoutPlugins {
 public:
  WithoutPlugins() : before_(Variable(kPath)) {
    setenv(kPath, "/nonexistent", /*replace=*/1);
  }
  ~WithoutPlugins() {
    if (before_.has_value()) {
      setenv(kPath, before_->c_str(), /*replace=*/1);
    } else {
      unsetenv(kPath);
    }
  }
  WithoutPlugins(const WithoutPlugins&) = delete;
  WithoutPlugins& operator=(const WithoutPlugins&) = delete;

 private:
  static constexpr char kPath[] = "HWLOC_PLUGINS_PATH";
  const absl::optional<std::string> before_;
};

// Returns the PCI address of the visible GPU `index`, "0000:17:00.0", or "".
// Asks the driver, since only it knows how CUDA_VISIBLE_DEVICES and
// CUDA_DEVICE_ORDER number the machine's GPUs.
std::string BusIdOfGpu(int index) {
  std::string unused;
  void* const driver = OpenDriverLibrary(/*root=*/"", &unused);
  if (driver == nullptr) return "";
  const auto init =
      reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto device_of =
      reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto bus_id_of = reinterpret_cast<int (*)(char*, int, int)>(
      dlsym(driver, "cuDeviceGetPCIBusId"));
  int device = 0;
  char bus_id[32] = "";
  if (init == nullptr || device_of == nullptr || bus_id_of == nullptr ||
      init(0) != 0 || device_of(&device, index) != 0 ||
      bus_id_of(bus_id, sizeof(bus_id), device) != 0) {
    return "";
  }
  return bus_id;
}

}  // namespace

void FreeTopology::operator()(hwloc_topology* topology) const {
  hwloc_topology_destroy(topology);
}

Topology TopologyOfMachine(bool devices) {
  const WithoutPlugins without_plugins;
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return nullptr;
  Topology topology(made);
  // A part of a machine, like a container's cpuset, shows as such. What a
  // launcher's HWLOC_XMLFILE describes is this machine: hwloc would else
  // neither tell nor change what this process is bound to.
  hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED |
                                     HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM);
  if (devices) {
    hwloc_topology_set_type_filter(made, HWLOC_OBJ_PCI_DEVICE,
                                   HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  }
  if (hwloc_topology_load(made) != 0) return nullptr;
  return topology;
}

RankCores ChooseCores(hwloc_topology& machine, const CoreRequest& request) {
  const hwloc_topology_t topology = &machine;
  const Cpus mask = FromSet(request.mask);
  RankCores chosen;
  if (request.own_process &&
      !Same(mask, hwloc_topology_get_allowed_cpuset(topology))) {
    // OpenMP would take hyperthreads for cores.
    chosen.cores = CountCores(topology, mask);
    return chosen;
  }
  const Choice choice = request.gpu_bus_id.empty()
                            ? EqualShare(topology, mask, request)
                            : NearGpu(topology, mask, request);
  if (hwloc_bitmap_iszero(choice.cpus.get()) != 0 ||
      Same(choice.cpus, mask.get())) {
    return chosen;
  }
  chosen.cpus = ToSet(choice.cpus.get());
  if (choice.own) chosen.cores = CountCores(topology, choice.cpus);
  chosen.text =
      absl::StrCat(ListText(choice.cpus.get()), " (NUMA ",
                   ListText(NodesOf(topology, choice.cpus).get()), ")");
  return chosen;
}

RankInfo BindToCores(RankInfo info, int gpus) {
  // Nothing to divide, nothing to be near to.
  if (gpus == 0 && info.local_world_size == 1 && !info.own_process) return info;
  CoreRequest request;
  request.local_rank = info.local_rank;
  request.local_world_size = info.local_world_size;
  request.own_process = info.own_process;
  if (gpus > 0) {
    request.gpu_bus_id = BusIdOfGpu(info.GpuIndex());
    if (request.gpu_bus_id.empty()) return info;
  }
  const Topology machine = TopologyOfMachine(/*devices=*/gpus > 0);
  if (machine == nullptr) return info;
  const Cpus mask = Empty();
  hwloc_get_cpubind(machine.get(), mask.get(), HWLOC_CPUBIND_THREAD);
  request.mask = ToSet(mask.get());
  RankCores chosen = ChooseCores(*machine, request);
  if (!chosen.cpus.empty() &&
      hwloc_set_cpubind(machine.get(), FromSet(chosen.cpus).get(),
                        HWLOC_CPUBIND_THREAD) != 0) {
    LOG(WARNING) << "rank " << info.rank << " can't be bound to cores "
                 << chosen.text << " (" << strerror(errno)
                 << "); launch.binding UNBOUND doesn't try";
    return info;
  }
  if (chosen.cores > 0 && !Variable("OMP_NUM_THREADS").has_value()) {
    info.threads = std::min(info.threads, chosen.cores);
  }
  if (gpus > 0 && !chosen.text.empty()) {
    // "0-7 (NUMA 0)"
    chosen.text.pop_back();
    absl::StrAppend(&chosen.text, ", near GPU ", info.GpuIndex(), ")");
  }
  info.cores = chosen.text;
  return info;
}

}  // namespace capstan
