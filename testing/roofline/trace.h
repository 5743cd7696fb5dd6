// SPDX-License-Identifier: Apache-2.0
//
// The trace of a rank on stand-in CUDA devices, in the format of
// testing/standin/README.md.
#ifndef CAPSTAN_TESTING_ROOFLINE_TRACE_H_
#define CAPSTAN_TESTING_ROOFLINE_TRACE_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "testing/roofline/product_model.h"

namespace capstan {

enum class TraceKind {
  kWork,         // a kernel, several, or a collective
  kCopy,         // a copy or a fill by the copy engines
  kGraphLaunch,  // of the works of that graph that follow
  kRecord,
  kWaitEvent,
  kHostWait,
  kMalloc,
  kFree,
};

// The NVTX range around a collective of ranks that aren't neighbours begins
// thus, and goes on with their distance in the run: "stride 8".
constexpr char kStrideRange[] = "stride ";

// What unit does a work's arithmetic.
enum class TraceUnit { kVector, kTf32, kHalf, kFp8 };

// One call of the host. Fields that its kind doesn't have are 0 or empty.
struct TraceEntry {
  TraceKind kind = TraceKind::kWork;
  // Of a work: "aten::mm". Of a copy: "h2d", "d2h", "d2d", .. Of a host's wait:
  // what waited.
  std::string name;
  std::string range;  // the innermost NVTX range, "forward"
  int64_t stream = -1;
  int64_t event = -1;
  int64_t graph = 0;  // of a work: the graph that it was launched in
  TraceUnit unit = TraceUnit::kVector;
  double flops = 0;
  int64_t read = 0;  // bytes of device memory
  int64_t written = 0;
  int64_t launches = 0;
  int64_t sent = 0;    // bytes over links; a collective's
  int64_t ranks = 0;   // of a collective; else 0
  int64_t stride = 1;  // the distance of its ranks in the run (PaperGroup)
  ProductShape product;
  int64_t bytes = 0;  // of a copy, an allocation
};

// The calls of one step, and what the rank's device memory reached until its
// end, in bytes, as far as cudaMalloc tells.
struct TracedStep {
  int64_t step = 0;
  std::vector<TraceEntry> entries;
  int64_t peak_bytes = 0;
};

// All steps of a trace that have ended. What isn't in a step is left out. A
// last line that is cut off ends the trace; any other that can't be read is an
// error with its number.
absl::StatusOr<std::vector<TracedStep>> ReadTrace(std::istream& in);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_TRACE_H_
