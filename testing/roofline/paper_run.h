// SPDX-License-Identifier: Apache-2.0
//
// The first steps of a run on a stand-in GPU that notes what it is asked for
// and does nothing (testing/standin/README.md, the setting `paper`), by one
// rank, whose others aren't there.
#ifndef CAPSTAN_TESTING_ROOFLINE_PAPER_RUN_H_
#define CAPSTAN_TESTING_ROOFLINE_PAPER_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testing/roofline/trace.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// How many steps are traced: those after the first are alike, once the caching
// allocator has its memory or, with train.cuda_graphs, once micro-steps are
// repeated (session/micro_step_graph.h), which roofline is then about.
constexpr int64_t kPaperSteps = 3;
constexpr int64_t kPaperStepsWithGraphs = 8;

// Trains as rank 0 of `ranks` for so many steps, in this process, which must
// run on stand-in devices (PaperFolder) and should end then. `folder`: for the
// run's files.
absl::Status RunOnPaper(TrainJob* job, int ranks, const std::string& folder);

// In a process started by TraceRun: the folder for its trace; else "".
std::string PaperFolder();

struct StandIn {
  std::string script;     // testing/standin/run.sh
  std::string libraries;  // their folder
};
// Where the stand-in devices are: where CAPSTAN_STANDIN_RUN and
// CAPSTAN_STANDIN_LIBRARIES say, else relative to this program and to the
// working directory; an error says how to build them.
absl::StatusOr<StandIn> FindStandIn();

// Runs `command` (a program and its arguments), which calls RunOnPaper, on
// `gpus` stand-in devices of the kind `gpu` ("h100"), and returns the steps
// that it has traced. Blocks. What the program writes goes to stderr if it
// fails.
absl::StatusOr<std::vector<TracedStep>> TraceRun(
    const std::vector<std::string>& command, const std::string& gpu, int gpus);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_PAPER_RUN_H_
