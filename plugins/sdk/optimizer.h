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

// Elements [begin, begin + length) of `parameter`, at `offset` in a buffer.
struct ParameterRange {
  int parameter = 0;
  int64_t begin = 0;
  int64_t length = 0;
  int64_t offset = 0;
};

// What this rank updates: 1-D contiguous tensors of one length and device.
struct OptimizerShard {
  at::Tensor master;    // master dtype (float32)
  at::Tensor gradient;  // reduce dtype; summed over ranks, not yet scaled
  at::Tensor working;   // compute dtype; undefined: master is the working copy
  // Ascending by offset; gaps are padding and hold zeros. A matrix is whole if
  // `begin` is 0: master.narrow(0, offset, spec.numel()).view(spec.shape).
  std::vector<ParameterRange> ranges;
};

struct OptimizerStep {
  int64_t step = 1;             // 1 for the first update: bias correction
  double learning_rate = 0.0;   // after the schedule
  double gradient_scale = 1.0;  // unscales, normalises and clips gradients
  // If defined, a float32 scalar on the shard's device that also multiplies
  // gradients; if it isn't finite, the update changes nothing. The core sets it
  // only on GPUs, the conformance suite everywhere.
  at::Tensor device_scale;
};

// A kind of state, stored as a 1-D tensor per shard.
struct OptimizerStateSpec {
  std::string name;  // unique; its name in checkpoints, "exp_avg"
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // the masters' dtype
  // Element i of a shard uses element i / block of the state; a power of two up
  // to 4096. Blocks start with their parameter and are never split by shards.
  int64_t block = 1;
  // If greater than 0, replaces `block`: the state has this many elements for
  // each range, in order. Shards with parts of a parameter must compute the
  // same values, from inputs equal on all ranks, unless it NeedsWhole.
  int64_t per_parameter = 0;
};

// Known before any rank starts.
struct OptimizerRequest {
  const Model* model = nullptr;
  PrecisionPolicy precision;
  int world_size = 1;
};

// The optimizer's inputs on one rank, which outlive it.
struct OptimizerContext {
  const Model* model = nullptr;
  absl::Span<const OptimizerShard> shards;  // the strategy's, after its Setup
};

struct UpdateMemoryRequest {
  const Model* model = nullptr;
  int64_t elements = 0;  // that the rank updates, padding included
  bool on_gpu = false;   // where they are
};

class Optimizer {
 public:
  virtual ~Optimizer();

  virtual double learning_rate() const = 0;  // before the schedule

  // Whether it can train the request. A FieldError names a field of its config.
  virtual absl::Status Check(const OptimizerRequest& request) const {
    return absl::OkStatus();
  }

  // Whether Update needs this trainable parameter in one range on one rank.
  // Strategies pad for it, so ask for no more than is needed. Constant.
  virtual bool NeedsWhole(const Model& model, int parameter) const {
    return false;
  }

  // Names of a master's state tensors, also in checkpoints. Constant.
  virtual std::vector<std::string> state_names() const = 0;

  // In the order of state_names(). By default like the masters. Constant.
  virtual std::vector<OptimizerStateSpec> state_specs() const;

  // Returns the length of state_specs()[state] for a parameter: kAsSpecified,
  // kByRange (n / block, rounded up, for a range of length n), or elements per
  // range, which overrides per_parameter (0: none). Unless all trainable
  // parameters are kAsSpecified, a shard's state of this kind has no padding,
  // but concatenates those of its ranges. Constant.
  static constexpr int64_t kAsSpecified = -1;
  static constexpr int64_t kByRange = -2;
  virtual int64_t StateNumel(const ParameterSpec& parameter, int state) const {
    return kAsSpecified;
  }

  // Called on each rank after the strategy's Setup, before any Update.
  virtual absl::Status Setup(const OptimizerContext& context) {
    return absl::OkStatus();
  }

  // Updates shard.master, shard.working and `state`, one tensor per
  // state_specs() that begins as zero, in place. shard.ranges index `specs`.
  virtual void Update(const OptimizerStep& step,
                      const std::vector<ParameterSpec>& specs,
                      OptimizerShard& shard, absl::Span<at::Tensor> state) = 0;

  // Returns the most bytes that Update allocates on the device, beside its
  // arguments; there are no activations then. By default 16 an element of the
  // largest parameter that it needs whole on a GPU, otherwise 0.
  virtual int64_t UpdateBytes(const UpdateMemoryRequest& request) const;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
  virtual void Room3();
  virtual void Room4();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OPTIMIZER_H_
