// SPDX-License-Identifier: Apache-2.0
//
// How long a GPU takes for a work: the roofline ("Roofline: An Insightful
// Visual Performance Model for Multicore Architectures", Williams et al., 2009)
// of data sheets' peaks, times fractions of them that programs reach.
#ifndef CAPSTAN_TESTING_ROOFLINE_GPU_MODEL_H_
#define CAPSTAN_TESTING_ROOFLINE_GPU_MODEL_H_

#include <string>

#include "testing/roofline/trace.h"
#include "trainer/profile/gpu_specs.h"

namespace capstan {

// What is assumed and not in a data sheet; by AssumptionsFor. Nothing here was
// measured by this project: no GPU has run it.
struct RooflineAssumptions {
  // Fractions of peaks for large works.
  double products = 1.0;   // matrix products on tensor cores, of the best shape
  double attention = 1.0;  // fused attention on tensor cores
  double vectors = 1.0;    // arithmetic outside of tensor cores
  double memory = 1.0;     // of the memory's bandwidth
  double links = 1.0;      // of the links' bandwidth, by collectives
  double network = 1.0;    // of a network port's, by collectives
  double host = 1.0;       // of the bandwidth to the host
  // Multiprocessors that a collective keeps from other kernels while it runs.
  double collective_share = 0.0;
  // A GPU's port to other hosts, bytes/s in one direction.
  double port = 50e9;

  // Seconds. Small works get far below the fractions by the first of these.
  double kernel = 0.0;         // a kernel's start and end, in its stream
  double in_graph = 0.0;       // the same, in a graph
  double enqueue = 0.0;        // the host, for a launch by an operator
  double enqueue_event = 0.0;  // to record or await an event
  double enqueue_graph = 0.0;
  double host_wait = 0.0;   // from the device's end to the host's next call
  double allocation = 0.0;  // cudaMalloc or cudaFree, on the host
  // By what factor collectives' latencies are longer than by NCCL's model.
  double latencies = 1.0;

  // Not assumed: how the run's GPUs are spread; 0: over one host.
  int gpus_of_host = 0;
};

// How well a GPU is taken to do: as it likely does, or as badly or well as all
// that is known allows.
enum class Luck { kBad, kLikely, kGood };
RooflineAssumptions AssumptionsFor(const GpuSpecs& gpu,
                                   Luck luck = Luck::kLikely);

// The table of all that is assumed for a GPU, with ranges and sources. Plain
// text, a line each.
std::string AssumptionsText(const GpuSpecs& gpu);

// What bounds a work.
enum class Bound { kArithmetic, kMemory, kLinks, kOverhead };

struct WorkTime {
  double seconds = 0.0;
  Bound bound = Bound::kOverhead;  // what takes the most of it
};

// Of a kWork or kCopy.
WorkTime TimeOf(const TraceEntry& entry, const GpuSpecs& gpu,
                const RooflineAssumptions& assumed);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_GPU_MODEL_H_
