// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTING_ROOFLINE_SIMULATE_H_
#define CAPSTAN_TESTING_ROOFLINE_SIMULATE_H_

#include <map>
#include <string>
#include <vector>

#include "testing/roofline/gpu_model.h"
#include "testing/roofline/trace.h"

namespace capstan {

// What all works of one name come to in a step.
struct KernelTotal {
  int64_t works = 0;
  int64_t launches = 0;
  double flops = 0;
  double bytes = 0;  // of device memory, read and written
  double sent = 0;   // bytes over links
  double seconds = 0;
};

struct StepTotals {
  std::map<std::string, KernelTotal> kernels;  // by name
  int64_t launches = 0;                        // by the host: a graph is one
  int64_t waits = 0;                           // of the host for the device
  int64_t allocations = 0;                     // cudaMalloc and cudaFree
  double flops = 0;
  double bytes = 0;
  double sent = 0;
};

// Seconds.
struct PredictedStep {
  double step = 0.0;
  double busy = 0.0;  // of the stream that works most
  // How much shorter the step would be if collectives took no time; if the host
  // did.
  double exposed_communication = 0.0;
  double exposed_host = 0.0;
  double communication = 0.0;  // all collectives, one after another
  // Of the works' time, outside of collectives.
  double by_arithmetic = 0.0, by_memory = 0.0, by_overhead = 0.0;
};

StepTotals TotalsOf(const TracedStep& step, const GpuSpecs& gpu,
                    const RooflineAssumptions& assumed);

// A discrete-event simulation of the rank's calls: the host makes one after
// another; each stream does its works in order, each when it has been enqueued
// and the events that the stream waits for have come; a host's wait ends when
// the device has done what it waits for. A collective slows other works by the
// multiprocessors that it takes; else works of different streams don't slow
// each other, and other ranks are as fast as this one. `before` is simulated
// first, for the works that the host is ahead (may be null).
PredictedStep Simulate(const TracedStep& step, const TracedStep* before,
                       const GpuSpecs& gpu, const RooflineAssumptions& assumed);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_SIMULATE_H_
