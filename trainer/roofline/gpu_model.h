// SPDX-License-Identifier: Apache-2.0
//
// How long a GPU takes for a work: the roofline ("Roofline: An Insightful
// Visual Performance Model for Multicore Architectures", Williams et al., 2009)
// of data sheets' peaks, times fractions of them that programs reach.
#ifndef CAPSTAN_TRAINER_ROOFLINE_GPU_MODEL_H_
#define CAPSTAN_TRAINER_ROOFLINE_GPU_MODEL_H_

#include "trainer/profile/gpu_specs.h"
#include "trainer/roofline/trace.h"

namespace capstan {

// What is assumed and not in a data sheet. Nothing here was measured by this
// project: no GPU has run it. docs/roofline.md says where each comes from.
struct RooflineAssumptions {
  // Fractions of peaks for large works.
  double products = 0.72;   // matrix products on tensor cores
  double attention = 0.40;  // fused attention on tensor cores
  double vectors = 0.60;    // arithmetic outside of tensor cores
  double memory = 0.85;     // of the memory's bandwidth
  double links = 0.78;      // of the links' bandwidth, by collectives
  double pcie = 0.80;       // of the bandwidth to the host

  // Seconds. Small works get far below the fractions by the first of these: at
  // 1024^3 a bfloat16 product on an H100 takes 5.5 us, 40 % of the peak.
  double kernel = 2.5e-6;       // a kernel's start and end, in its stream
  double enqueue = 4e-6;        // the host, for a launch by an operator
  double enqueue_event = 1e-6;  // to record or await an event
  double enqueue_graph = 10e-6;
  double in_graph = 1.2e-6;    // a kernel's start and end, in a graph
  double host_wait = 8e-6;     // from the device's end to the host's next call
  double allocation = 150e-6;  // cudaMalloc or cudaFree, on the host
  double collective = 12e-6;   // its start, and for each other rank:
  double collective_rank = 2e-6;
};

// Of that GPU: attention's fraction differs most between generations.
RooflineAssumptions AssumptionsFor(const GpuSpecs& gpu);

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

#endif  // CAPSTAN_TRAINER_ROOFLINE_GPU_MODEL_H_
