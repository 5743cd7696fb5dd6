// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_STEP_IN_FLIGHT_H_
#define CAPSTAN_TRAINER_SESSION_STEP_IN_FLIGHT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/process_group.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/step_sums.h"

namespace capstan {

// Sums modulo 2^64 of a step's hashes (receipts.h, digests.h).
struct StateDigest {
  uint64_t rows = 0;     // that it was computed from
  uint64_t weights = 0;  // after it
  uint64_t state = 0;    // of strategy and optimizer, after it
};

// A step on its way from micro-batches to its record. Each stage of TrainStep
// takes it, adds its results and returns it. On GPUs the last stage runs one
// step later.
struct StepInFlight {
  // Known when it begins.
  int64_t number = 0;         // from 1
  double start = 0.0;         // MonotonicSeconds
  int64_t position = 0;       // of its first sample in the run's sequence
  CommunicationStats before;  // the group's, so far

  // Of train.forgotten_rows those among its samples, of all ranks, in order;
  // and which of this rank's micro-batches have no others, or no samples at all
  // (BatchShares), so that what stands in for them has weight zero. Empty:
  // none.
  std::vector<int64_t> forgotten;
  std::vector<bool> weightless;

  // Whether it ends before it has begun to train: the run is to stop, and its
  // rollout was left.
  bool left = false;

  // Of this rank's micro-batches. Tensors are on the device, since reading them
  // would synchronize.
  std::deque<Batch> ahead;          // read before their turn
  std::deque<Batch> read;           // with train.witness: by the loader
  std::vector<at::Tensor> losses;   // of each micro-batch
  at::Tensor loss_sum;              // of them
  at::Tensor gradient_squared_sum;  // Strategy::GradientSquaredSum
  at::Tensor metrics;               // by StepMetricTags; undefined: none
  // In the place of the two sums, where they are added without rounding.
  ExactSums exact;
  // The bad samples that were skipped.
  std::vector<BadSample> bad_samples;
  // This rank's error, with which it takes part in the reduction.
  absl::Status error;

  // This rank's, until they are reduced over all ranks.
  StepSums sums;
  GradientRule rule;
  absl::optional<GpuMemory> memory;  // the largest of all ranks
  // The metrics' sums over all ranks, if known with the step's.
  std::vector<double> summed_metrics;
  // With Strategy::local_steps(): what follows from this replica's sums alone.
  // The norm in `sums` then is the rank's contribution to the mean of the
  // squared norms of the replicas' mean gradients.
  absl::optional<StepOutcome> own;
  // What follows from the reduced sums.
  StepOutcome outcome;

  double lr = 0.0;               // of its update
  int64_t witness_failures = 0;  // of all ranks, with train.witness
  // With train.receipts: this rank's rows, then all of all ranks.
  StateDigest digest;
  CommunicationStats communication;  // this step's
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_IN_FLIGHT_H_
