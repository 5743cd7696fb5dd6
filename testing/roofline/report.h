// SPDX-License-Identifier: Apache-2.0
//
// What roofline prints.
#ifndef CAPSTAN_TESTING_ROOFLINE_REPORT_H_
#define CAPSTAN_TESTING_ROOFLINE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "testing/roofline/simulate.h"
#include "trainer/profile/gpu_specs.h"

namespace capstan {

// What was traced.
struct RooflineRun {
  std::string name;
  int gpus = 1;  // of all hosts
  int hosts = 1;
  std::string strategy;
  std::string precision;
  int64_t parameters = 0;
  double tokens = 0;       // of a rank's step, padding included
  double model_flops = 0;  // of a rank's step (ModelFlops); 0: unknown
};

// A prediction for one kind of GPU.
struct RooflineRow {
  const GpuSpecs* gpu = nullptr;
  PredictedStep step;  // as it is likely
  // Seconds of a step with all luck that is assumed possible, and with none.
  double fastest = 0, slowest = 0;
  StepTotals totals;
  int64_t micro_batch = 0;
  // Predictions of its memory at its peak, in bytes: by the plan, and by what
  // the trace allocates; and what of it tensors may take.
  int64_t planned_bytes = 0;
  int64_t traced_bytes = 0;
  int64_t room_bytes = 0;

  // Of all GPUs, for a step of so many seconds.
  static double TokensPerSecond(const RooflineRun& run, double seconds);
  // Model FLOPs over the GPU's bfloat16 peak; 0: unknown.
  double Mfu(const RooflineRun& run) const;
  bool Fits() const { return planned_bytes <= room_bytes; }
};

// The kernels of the first row, then a line for each GPU. Plain text.
std::string RooflineText(const RooflineRun& run,
                         const std::vector<RooflineRow>& rows);

// An object with the run, and for each GPU what was predicted.
std::string RooflineJson(const RooflineRun& run,
                         const std::vector<RooflineRow>& rows);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_REPORT_H_
