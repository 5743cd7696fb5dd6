// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
#define CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"

namespace capstan {

// A loss as a sum and a count: the core divides by the count over all ranks
// and micro-batches of a step, never a mean of means.
struct LossSum {
  at::Tensor sum;      // scalar float32, with gradient in training
  int64_t count = 0;   // targets; 0 is legal and contributes nothing
  int64_t tokens = 0;  // input tokens (or samples) seen, for throughput
};

// How to sample. Unset fields take the objective's own config.
struct SampleOptions {
  int64_t max_new_tokens = 0;  // 0: the objective's config
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  bool greedy = false;
  uint64_t seed = 0;
  bool stop_at_eos = true;
  // Ends of text beside the model's own, for stop_at_eos.
  std::vector<int64_t> stop_tokens;
  // Called with each token as it is chosen; may be null.
  std::function<void(int64_t token)> on_token;
};

class Objective {
 public:
  virtual ~Objective();

  // Whether model and data fit this objective and each other, e.g. "the data
  // has token ids up to 255, the model's vocab_size is 128".
  virtual absl::Status Check(Model& model, const DatasetReader& data) const = 0;

  // The targets in a batch, as Compute will count them, without computing.
  virtual int64_t CountTargets(const Batch& batch) const = 0;

  // Runs the model on a batch that is on the model's device.
  virtual LossSum Compute(Model& model, const Batch& batch,
                          UnitRunner& runner) = 0;

  // Continues `prompt` (token ids, at least one), without gradients; returns
  // prompt and continuation. UNIMPLEMENTED if the objective can't.
  virtual absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
