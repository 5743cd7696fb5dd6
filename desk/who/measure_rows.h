// SPDX-License-Identifier: Apache-2.0
//
// What each row of a step adds to the step's loss.
#ifndef CAPSTAN_DESK_WHO_MEASURE_ROWS_H_
#define CAPSTAN_DESK_WHO_MEASURE_ROWS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "desk/who/step_of_run.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "trainer/session/run_parts.h"

namespace capstan {

using NamedNumbers = std::vector<std::pair<std::string, double>>;

struct MeasuredRow {
  StepRow place;
  // Without its sample_position: what the reader gives for the row alone, of
  // pairs both texts; or what the objective has made of that (rollouts).
  Batch batch;
  // Of a row that the objective has made: the tensors that have one number for
  // each row, as "advantages".
  NamedNumbers made;
  // What the objective measures of the row by itself (Objective::metrics), by
  // the names in metrics.jsonl, where it applies.
  NamedNumbers metrics;
  // The row's loss is loss_sum / targets. Unset: rollouts whose loss takes
  // several rows together.
  absl::optional<double> loss_sum;
  int64_t targets = 0;
  int64_t tokens = 0;   // LossSum::tokens
  int64_t trained = 0;  // LossSum::trained
  // Of what the row adds to the step's mean loss: the norm of the gradient of
  // loss_sum / the step's targets.
  absl::optional<double> gradient_norm;
  at::Tensor token_losses;  // TokenLossModel::Take; may be undefined
};

struct MeasuredStep {
  // Computed and added up as training does it.
  double loss = 0.0;
  int64_t targets = 0;
  std::vector<MeasuredRow> rows;
};

struct MeasureRequest {
  RunParts* parts = nullptr;  // with bound weights
  const DatasetReader* data = nullptr;
  // The parameters that are trained, as they are bound.
  std::vector<at::Tensor> trained;
  std::vector<StepRow> rows;
  int64_t micro_batch_size = 1;
  uint64_t seed = 0;
  int64_t step = 0;  // from 1
  // Of rollouts, as RolloutInfo's.
  std::function<absl::Status(const std::function<absl::Status()>& forwards)>
      with_initial_weights;
  bool gradients = false;
  c10::Device device{c10::DeviceType::CPU};
  std::function<void(double done)> progress = [](double) {};
};

// Computes each micro-batch of the rows' ranks, then each row by itself. The
// rows' losses add up to the step's but for rounding: a row by itself is padded
// less. Dropout and masks are drawn as in training. What an objective makes of
// the rows it makes of all ranks' together: the same to the bit in a
// deterministic run, or of one rank.
absl::StatusOr<MeasuredStep> MeasureRows(const MeasureRequest& request);

// Binds a model's weights for training on `device` in `dtype`: those of
// `folder`, a checkpoint, or, if it is none, those that the model begins with.
// Returns the trained ones.
absl::StatusOr<std::vector<at::Tensor>> BindForTraining(
    const std::string& folder, uint64_t seed, c10::ScalarType dtype,
    c10::Device device, Model* model);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WHO_MEASURE_ROWS_H_
