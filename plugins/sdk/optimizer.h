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

// Elements [begin, begin + length) of `parameter`, at `offset` in a flat
// buffer.
struct ParameterRange {
  int parameter = 0;
  int64_t begin = 0;
  int64_t length = 0;
  int64_t offset = 0;
};

// A flat slice of the model that this rank's optimizer updates. All tensors are
// 1-D, contiguous, of the same length and on the same device.
struct OptimizerShard {
  at::Tensor master;    // master dtype (float32)
  at::Tensor gradient;  // reduce dtype; summed over ranks, not yet scaled
  // The working copy in the compute dtype; the optimizer writes it along with
  // the master. Undefined when the master is the working copy.
  at::Tensor working;
  // The parameters in the slice, ascending by offset; gaps are padding and hold
  // zeros. A range with `begin` 0 and the parameter's numel() is a whole
  // matrix: master.narrow(0, offset, length).view(spec.shape).
  std::vector<ParameterRange> ranges;
};

struct OptimizerStep {
  int64_t step = 1;            // 1 for the first update: bias correction
  double learning_rate = 0.0;  // after the schedule
  // Multiplies gradients first: unscaling, normalisation and clipping.
  double gradient_scale = 1.0;
  // If defined, a float32 scalar on the shard's device that also multiplies
  // gradients, so that a step on a GPU never waits for the host. If it isn't
  // finite, the update changes nothing. Defined only on GPUs, but the
  // conformance suite sets it everywhere.
  at::Tensor device_scale;
};

// A kind of state, stored as a 1-D tensor per shard.
struct OptimizerStateSpec {
  std::string name;  // unique; its name in checkpoints, "exp_avg"
  // Undefined: the dtype of the masters.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  // The number of consecutive elements of a parameter that share one element of
  // the state: 256 for the scales of blocks of 256. A power of two up to 4096.
  // Element i of a shard uses element i / block of the state. Blocks start with
  // their parameter and are never split between shards.
  int64_t block = 1;
  // If greater than 0, replaces `block`: the state has this many elements for
  // each of the shard's ranges, in order. Every shard that holds a part of the
  // parameter must compute the same values: from inputs equal on all ranks, or
  // for a parameter that NeedsWhole.
  int64_t per_parameter = 0;
};

// What the optimizer is to train; known before any rank starts.
struct OptimizerRequest {
  const Model* model = nullptr;
  PrecisionPolicy precision;
  int world_size = 1;
};

// What the optimizer trains on one rank; everything outlives it.
struct OptimizerContext {
  const Model* model = nullptr;
  // OptimizerShards() of the strategy, after its Setup.
  absl::Span<const OptimizerShard> shards;
};

// The arguments of Optimizer::UpdateBytes.
struct UpdateMemoryRequest {
  const Model* model = nullptr;
  int64_t elements = 0;  // that the rank updates, padding included
  bool on_gpu = false;   // where they are
};

class Optimizer {
 public:
  virtual ~Optimizer();

  // The config's learning rate, before the schedule.
  virtual double learning_rate() const = 0;

  // Whether this optimizer can train the request. A FieldError names a field of
  // its config.
  virtual absl::Status Check(const OptimizerRequest& request) const {
    return absl::OkStatus();
  }

  // Whether Update needs this trainable parameter whole, in one range on one
  // rank. A sharding strategy then assigns whole parameters to ranks and pads,
  // so ask for no more than is needed. Constant.
  virtual bool NeedsWhole(const Model& model, int parameter) const {
    return false;
  }

  // Names of the state tensors per master, also used in checkpoints, e.g.
  // {"exp_avg", "exp_avg_sq"}. Constant.
  virtual std::vector<std::string> state_names() const = 0;

  // The state in the order of state_names(). Default: the dtype and length of
  // the masters. Constant.
  virtual std::vector<OptimizerStateSpec> state_specs() const;

  // The length of state_specs()[state] for a parameter: kAsSpecified, kByRange,
  // or a number of elements for each of the parameter's ranges, which overrides
  // per_parameter (0: none). Unless it is kAsSpecified for all trainable
  // parameters, a shard's state of this kind has no padding: it concatenates
  // the states of the shard's ranges, each of the length returned here, or for
  // kByRange of n / block elements, rounded up, for a range of length n.
  // Constant.
  static constexpr int64_t kAsSpecified = -1;
  static constexpr int64_t kByRange = -2;
  virtual int64_t StateNumel(const ParameterSpec& parameter, int state) const {
    return kAsSpecified;
  }

  // Called on each rank after the strategy's Setup, before any Update.
  virtual absl::Status Setup(const OptimizerContext& context) {
    return absl::OkStatus();
  }

  // Updates shard.master, shard.working and the state in place. state: one
  // tensor per state_specs(), zero before the first step. `specs` are the
  // model's parameters, indexed by shard.ranges. An exception ends the run with
  // an error that names the plugin and the step.
  virtual void Update(const OptimizerStep& step,
                      const std::vector<ParameterSpec>& specs,
                      OptimizerShard& shard, absl::Span<at::Tensor> state) = 0;

  // The most bytes that Update allocates beside its arguments, on their device.
  // `plan` counts them at a time without activations. Default: on a GPU, 16 for
  // each element of the largest parameter that it needs whole; otherwise 0.
  virtual int64_t UpdateBytes(const UpdateMemoryRequest& request) const;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_
