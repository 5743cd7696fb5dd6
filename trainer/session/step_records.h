// SPDX-License-Identifier: Apache-2.0
//
// Records of each step: its line of metrics.jsonl, and its part in
// summary.json.
#ifndef CAPSTAN_TRAINER_SESSION_STEP_RECORDS_H_
#define CAPSTAN_TRAINER_SESSION_STEP_RECORDS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "trainer/metrics/reporter.h"
#include "trainer/profile/model_flops.h"
#include "trainer/session/session.h"
#include "trainer/session/step_in_flight.h"

namespace capstan {

// Medians over a run's steps except the first two (cold buffers), in constant
// memory: exact for 8,192 steps, then over every second step, every fourth, and
// so on, evenly spread over the run. Of bytes sent the mean over all those
// steps, since a strategy may send in some of them alone.
class StepMedians {
 public:
  struct Step {
    double seconds = 0.0;
    double tokens = 0.0;  // all ranks
    CommunicationStats communication;
    double flops = 0.0;       // the model's, all ranks
    double recomputed = 0.0;  // further ones
  };

  void Add(const Step& step);
  // Sets the summary's medians. 0 without steps. `peak`: the GPUs' FLOP/s; 0:
  // unknown.
  void Summarize(double peak, RunSummary* summary) const;
  size_t kept() const { return kept_.size(); }

 private:
  int64_t added_ = 0;
  int64_t stride_ = 1;  // of the steps in kept_
  std::vector<Step> kept_;
  double bytes_sent_ = 0.0;
};

class StepRecords {
 public:
  explicit StepRecords(Session* session);

  // Call once all ranks are set up. Collective.
  void Begin(double ready_seconds);
  // Reports step state.step. Collective if the objective's metrics are due and
  // not summed yet.
  // `spike`: the loss's score if it is one.
  void Record(const StepInFlight& step, absl::optional<double> spike);
  // Takes this rank's memory in a step, including what the allocator doesn't
  // count (MicroStepGraphs::AddMemory), for the summary.
  void NoteMemory(const GpuMemory& memory) {
    gpu_peak_ = std::max(gpu_peak_, memory.peak_allocated);
  }
  // Summary of the run so far. Collective.
  RunSummary Summary();

 private:
  TaggedNumbers SumMetrics(const StepInFlight& step);
  void AddMemory(RunSummary* summary);
  // Returns why MFU isn't reported, or "" if it is. Sets flops_ and peak_.
  // Collective.
  std::string FindPeak();

  Session& session_;
  const int64_t memory_before_;  // of this process, when set-up began
  double ready_seconds_ = 0.0;
  double recorded_ = 0.0;  // time of the last record
  StepMedians medians_;
  ModelFlops flops_;
  // Tokens of a sample, where the objective counts samples; else 0.
  int64_t row_length_ = 0;
  int64_t gpu_peak_ = 0;  // of NoteMemory
  double peak_ = 0.0;     // FLOP/s of all ranks' GPUs; 0: there is no MFU
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_RECORDS_H_
