// SPDX-License-Identifier: Apache-2.0
//
// Which of a host's cores a rank runs on (launch.binding).
#ifndef CAPSTAN_TRAINER_LAUNCHER_CORES_H_
#define CAPSTAN_TRAINER_LAUNCHER_CORES_H_

#include <memory>
#include <set>
#include <string>

#include "trainer/launcher/rank_info.h"

// hwloc's.
struct hwloc_topology;

namespace capstan {

// The parts of a machine: NUMA nodes, cores, PCI devices.
class Topology {
 public:
  // Null if the system doesn't say. `devices`: PCI devices, too.
  static std::unique_ptr<Topology> OfThisMachine(bool devices);
  // Of `lstopo --of xml`; null if it isn't that.
  static std::unique_ptr<Topology> FromXml(const std::string& xml);
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  hwloc_topology* get() const { return topology_; }

 private:
  explicit Topology(hwloc_topology* topology) : topology_(topology) {}

  hwloc_topology* const topology_;
};

// What decides, besides the machine.
struct CoreRequest {
  // Processors, by the system's numbers, that the process may run on by now.
  std::set<int> mask;
  int local_rank = 0;
  int local_world_size = 1;
  // RankInfo's.
  bool own_process = false;
  // The rank's GPU, "0000:17:00.0"; "" without one.
  std::string gpu_bus_id;
};

struct RankCores {
  // Processors to run on, hyperthreads included; empty: stay where it is.
  std::set<int> cpus;
  // The most threads that make sense: the cores that the rank has to itself,
  // each counted once however many hyperthreads it has; 0: not known, as it
  // shares them with other ranks.
  int cores = 0;
  // "0-7,64-71 (NUMA 0)"; "" if `cpus` is empty.
  std::string text;
};

// The cores of one rank. Each rank chooses alone, and all of a host come to
// shares that fit together:
// - A mask that a launcher has given the rank's own process (srun --cpu-bind,
//   mpirun --bind-to) stays.
// - With a GPU: the cores of the NUMA node that the GPU hangs on. If the whole
//   machine may be used they are divided by the GPUs there, whether this run
//   uses them or not, so that two runs on a machine's GPUs don't meet. In a
//   part of the machine (taskset, a container's or job's cpuset) the ranks
//   share what it has of the node.
// - Without GPUs: equal shares of the mask, each inside one NUMA node if it
//   fits, and a core's hyperthreads together.
// - A share of few cores isn't set apart within its node, since a rank's helper
//   threads (loader, collectives) would take turns with the one that trains.
// Nothing is bound where that can't bring memory nearer, on one NUMA node, or
// where there are as many ranks as cores: the system moves threads better to
// where there is time. So on small machines two runs never end up on the same
// cores; on large ones each run without GPUs covers all of the mask, and two
// of them meet everywhere alike, as without binding.
RankCores ChooseCores(const Topology& topology, const CoreRequest& request);

// Binds this process, which is a rank and has no other threads yet, to its
// cores. Memory needs no more: the system puts a page where the thread runs
// that first writes to it. Returns `info` with `cores` set, and `threads` if
// the rank has cores to itself and OMP_NUM_THREADS doesn't say. `gpus`: as many
// are used here; 0: none, and no driver is touched. A failure leaves the rank
// unbound.
RankInfo BindToCores(RankInfo info, int gpus);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_CORES_H_
