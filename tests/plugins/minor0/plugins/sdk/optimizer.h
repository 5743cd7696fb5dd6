// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_
#define CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "model.h"

namespace capstan {

// `length` elements of parameter `parameter` from element `begin`, which lie
// at `offset` of a flat buffer.
struct ParameterRange {
  int parameter = 0;
  int64_t begin = 0;
  int64_t length = 0;
  int64_t offset = 0;
};

// A flat piece of the model that this rank's optimizer updates. All tensors
// are 1-D, contiguous, of the same length and on the same device.
struct OptimizerShard {
  at::Tensor master;    // master dtype (float32)
  at::Tensor gradient;  // reduce dtype; summed over ranks, not yet scaled
  // The working copy in the compute dtype, which the optimizer writes along
  // with the master. Undefined when the master is the working copy.
  at::Tensor working;
  // What lies where: ascending by offset; gaps are padding and hold zeros.
  std::vector<ParameterRange> ranges;
};

struct OptimizerStep {
  int64_t step = 1;            // 1 for the first update: bias correction
  double learning_rate = 0.0;  // after the schedule
  // Multiply gradients by it first: unscaling, normalisation and clipping.
  double gradient_scale = 1.0;
  // If defined, a float32 scalar on the shard's device that multiplies
  // gradients, too, so that a GPU's step needs no answer from the host. Where
  // it isn't finite, the update leaves everything as it is.
  at::Tensor device_scale;
};

class Optimizer {
 public:
  virtual ~Optimizer();

  // The config's learning rate, before the schedule.
  virtual double learning_rate() const = 0;

  // Names of the state tensors a master needs, e.g. {"exp_avg", "exp_avg_sq"};
  // they are stored under these in checkpoints. Constant.
  virtual std::vector<std::string> state_names() const = 0;

  // Updates shard.master, shard.working and the state in place. state: one
  // tensor a state name, shaped as the master, zero before the first step.
  // `specs` are the model's parameters, which shard.ranges index.
  virtual void Update(const OptimizerStep& step,
                      const std::vector<ParameterSpec>& specs,
                      OptimizerShard& shard, absl::Span<at::Tensor> state) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_
