// SPDX-License-Identifier: Apache-2.0
//
// Which of a host's cores a rank runs on (launch.binding).
#ifndef CAPSTAN_CLUSTER_LAUNCH_CORES_H_
#define CAPSTAN_CLUSTER_LAUNCH_CORES_H_

#include <memory>
#include <set>
#include <string>

#include "cluster/launch/rank_info.h"

// hwloc's.
struct hwloc_topology;

namespace capstan {

// The parts of a machine: NUMA nodes, cores, PCI devices.
struct FreeTopology {
  void operator()(hwloc_topology* topology) const;
};
using Topology = std::unique_ptr<hwloc_topology, FreeTopology>;

// Returns this machine's, or the one in the file HWLOC_XMLFILE (the output of
// `lstopo --of xml`); null if the system doesn't tell it. Includes PCI devices
// if `devices`.
Topology TopologyOfMachine(bool devices);

// The arguments of ChooseCores besides the machine.
struct CoreRequest {
  // The system's numbers of the processors that the process may run on.
  std::set<int> mask;
  int local_rank = 0;
  int local_world_size = 1;
  // RankInfo's.
  bool own_process = false;
  // The rank's GPU, "0000:17:00.0"; "" without one.
  std::string gpu_bus_id;
};

struct RankCores {
  // Processors to run on, hyperthreads included; empty: leave the process
  // unbound.
  std::set<int> cpus;
  // The number of cores (not hyperthreads) that the rank has to itself, which
  // is the most threads that make sense; 0: unknown, as it shares them with
  // other ranks.
  int cores = 0;
  // "0-7,64-71 (NUMA 0)"; "" if `cpus` is empty.
  std::string text;
};

// Chooses the cores of one rank. Each rank chooses alone, and the choices of a
// host's ranks are consistent:
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
// Nothing is bound on a machine with one NUMA node, where that can't bring
// memory nearer, or with as many ranks as cores, where the system balances
// threads better. So on small machines two runs are never bound to the same
// cores; on large ones each run without GPUs covers the whole mask, and two of
// them overlap evenly, as without binding.
RankCores ChooseCores(hwloc_topology& machine, const CoreRequest& request);

// Binds this process, a rank without other threads yet, to its cores. Memory
// follows, since the system places a page near the thread that first writes to
// it. Returns `info` with `cores` set, and with `threads` if the rank has cores
// to itself and OMP_NUM_THREADS isn't set. `gpus` is the number of GPUs used
// here; if 0, no driver is touched. A failure leaves the rank unbound.
RankInfo BindToCores(RankInfo info, int gpus);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_CORES_H_
