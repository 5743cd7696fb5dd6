// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_
#define CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/parameters.h"
#include "plugins/sdk/precision.h"

namespace capstan {

class Model;

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
  // A range with `begin` 0 and the parameter's numel() holds it whole:
  // master.narrow(0, offset, length).view(spec.shape) is the matrix.
  std::vector<ParameterRange> ranges;
};

struct OptimizerStep {
  int64_t step = 1;            // 1 for the first update: bias correction
  double learning_rate = 0.0;  // after the schedule
  // Multiply gradients by it first: unscaling, normalisation and clipping.
  double gradient_scale = 1.0;
  // If defined, a float32 scalar on the shard's device that multiplies
  // gradients, too, so that a GPU's step needs no answer from the host. Where
  // it isn't finite, the update leaves everything as it is. It is defined on
  // GPUs only, but the conformance suite sets it everywhere.
  at::Tensor device_scale;
};

// One kind of state, of which there is a 1-D tensor for each shard.
struct OptimizerStateSpec {
  std::string name;  // unique; its name in checkpoints, "exp_avg"
  // Undefined: the masters' dtype.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  // Elements of a parameter that share one element of the state: 256 for the
  // scales of blocks of 256. A power of two of at most 4096. Element
  // i of a shard has element i / block of the state. Blocks begin with their
  // parameter, and no shard cuts one.
  int64_t block = 1;
  // If greater than 0, `block` doesn't count: the state has so many elements
  // for each of the shard's ranges, in their order. Every shard that holds a
  // part of the parameter has them, and must compute the same: from what is
  // the same everywhere, or for a parameter that NeedsWhole.
  int64_t per_parameter = 0;
};

// What an optimizer is asked to train, before any rank is started.
struct OptimizerRequest {
  const Model* model = nullptr;
  PrecisionPolicy precision;
  int world_size = 1;
};

// What it trains, on one rank; all outlive it.
struct OptimizerContext {
  const Model* model = nullptr;
  // Of the strategy, which has been set up.
  absl::Span<const OptimizerShard> shards;
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
  // tensor a state_specs(), zero before the first step. `specs` are the
  // model's parameters, which shard.ranges index. What it throws ends the run,
  // with the plugin and the step named.
  virtual void Update(const OptimizerStep& step,
                      const std::vector<ParameterSpec>& specs,
                      OptimizerShard& shard, absl::Span<at::Tensor> state) = 0;

  // Since minor version 2.

  // Whether it can train that. FieldError names a field of its config.
  virtual absl::Status Check(const OptimizerRequest& request) const {
    return absl::OkStatus();
  }

  // On each rank, after the strategy's Setup and before the updates of these
  // shards.
  virtual absl::Status Setup(const OptimizerContext& context) {
    return absl::OkStatus();
  }

  // Whether Update must see this (trainable) parameter whole, in one range, on
  // one rank: an update that is a function of the whole matrix does. A strategy
  // that shards then gives each rank whole parameters, and pads: ask for no
  // more than is needed. Constant.
  virtual bool NeedsWhole(const Model& model, int parameter) const {
    return false;
  }

  // The state in detail, in the order of state_names(). By default the dtype
  // and length of the masters. Constant.
  virtual std::vector<OptimizerStateSpec> state_specs() const;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_
