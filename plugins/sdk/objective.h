// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
#define CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/measurement.h"
#include "plugins/sdk/model.h"

namespace capstan {

// A loss as a sum and a count. The core divides once, by the count over all
// ranks and micro-batches of a step: never a mean of means.
struct LossSum {
  at::Tensor sum;      // scalar float32, with gradient in training
  int64_t count = 0;   // targets; 0 is legal and contributes nothing
  int64_t tokens = 0;  // in unit(): input tokens without padding, or samples
  // [metrics().size(), 2] float64 on the model's device, without gradient: a
  // sum and its divisor for each metric. Undefined if there are none.
  at::Tensor metrics;
  // The number of computed positions that hold no token.
  int64_t padding = 0;
  // Tokens with a loss; negative: equal to `count`.
  int64_t trained = -1;
};

// The tags under which training and evaluation log a metric:
// "train/acc_action", "eval/acc_action".
struct MetricTags {
  std::string train;
  std::string eval;
};

// The step or evaluation that a batch belongs to.
struct StepInfo {
  // The run's seed, for random numbers keyed by the batch's "sample_position".
  uint64_t seed = 0;
  bool training = false;
  // StepTotals, summed over all batches of all ranks.
  std::vector<double> totals;
  // True in `trainer eval`, which also wants metrics() that cost more than the
  // loss, such as accuracy.
  bool thorough = false;
};

// The arguments of Measure.
struct MeasureInfo {
  uint64_t seed = 0;  // the run's
  int rank = 0;
  int world_size = 1;
  bool last = false;  // after the run's last step
  // Called from time to time with the fraction done, in [0, 1].
  std::function<void(double done)> progress = [](double) {};
  // Polled before each forward, the same number of times on all ranks; once it
  // returns true, Measure returns CANCELLED. May throw, as collectives do.
  std::function<bool()> stop = [] { return false; };
};

// How to sample. Unset fields default to the objective's config, and then to
// the model's own (TokenModel::generation_config).
struct SampleOptions {
  int64_t max_new_tokens = 0;  // 0: the objective's config
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  // Keeps only tokens with at least this share of the likeliest one's
  // probability.
  absl::optional<double> min_p;
  // Divides positive logits of tokens that the text contains, and multiplies
  // their other logits; 1: no penalty.
  absl::optional<double> repetition_penalty;
  // No sequence of this many tokens occurs twice in a text; 0: no limit.
  absl::optional<int64_t> no_repeat_ngram_size;
  bool greedy = false;
  uint64_t seed = 0;
  bool stop_at_eos = true;
  // End-of-text tokens in addition to the model's own, for stop_at_eos.
  std::vector<int64_t> stop_tokens;
  // Returns whether `text`, prompt included, ends here. Called after each
  // token, if tokens are chosen from left to right; may be null.
  std::function<bool(absl::Span<const int64_t> text)> ended;
  // Called with each chosen token; may be null.
  std::function<void(int64_t token)> on_token;
  // Replaces on_token if tokens aren't chosen from left to right: called after
  // each step with the whole text, prompt included, with the model's mask_token
  // at positions not yet chosen; may be null.
  std::function<void(absl::Span<const int64_t> text)> on_text;
  // As MeasureInfo::stop.
  std::function<bool()> stop = [] { return false; };
};

// One prompt of several that are continued together.
struct BatchPrompt {
  std::vector<int64_t> ids;          // at least one
  uint64_t seed = 0;                 // of its random numbers
  std::vector<int64_t> stop_tokens;  // as SampleOptions::stop_tokens
};

class Objective {
 public:
  virtual ~Objective();

  // Checks that model and data fit this objective and each other, e.g. "the
  // data has token ids up to 255, the model's vocab_size is 128".
  virtual absl::Status Check(Model& model, const DatasetReader& data) const = 0;

  // The number of targets in a batch, equal to Compute's count, without
  // computing the loss.
  virtual int64_t CountTargets(const Batch& batch,
                               const StepInfo& info) const = 0;

  // The length of StepTotals. A loss made of several means over different
  // counts needs the counts of the whole step: before the first forward, the
  // core sums StepTotals over all micro-batches and ranks into
  // StepInfo::totals. 0: none, at no cost.
  virtual int step_totals() const { return 0; }
  // This batch's contribution.
  virtual std::vector<double> StepTotals(const Batch& batch,
                                         const StepInfo& info) const {
    return {};
  }

  // The unit of LossSum::tokens in reports: "tokens", or "samples" if the data
  // isn't text. Constant.
  virtual std::string unit() const { return "tokens"; }

  // The tags of LossSum::metrics. Constant.
  virtual std::vector<MetricTags> metrics() const { return {}; }

  // Runs the model on a batch that is on the model's device.
  virtual LossSum Compute(Model& model, const Batch& batch,
                          const StepInfo& info, UnitRunner& runner) = 0;

  // Values derived from an evaluation's mean loss, by name: {"perplexity",
  // e^loss} if the loss is in nats per token.
  virtual std::vector<std::pair<std::string, double>> DerivedFromLoss(
      double loss) const {
    return {};
  }

  // This rank's share of the measurements of an evaluation; the core sums the
  // vectors over the ranks, so all have the same length, with 0 for what other
  // ranks measure. All ranks run the model equally often, since forward may
  // contain collectives. Without gradients. Empty: nothing is measured.
  virtual absl::StatusOr<std::vector<double>> Measure(
      Model& model, const DatasetReader& eval_data, const MeasureInfo& info,
      UnitRunner& runner) {
    return std::vector<double>();
  }
  // Turns the sums of Measure into a measurement.
  virtual Measurement Summarize(absl::Span<const double> sums,
                                const MeasureInfo& info) const {
    return {};
  }

  // Continues `prompt` (at least one token id) without gradients; returns
  // prompt and continuation. UNIMPLEMENTED if the objective can't sample.
  virtual absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) = 0;

  // Returns whether a row's text, prompt included, ends here; may be null.
  using Ended = std::function<bool(size_t row, absl::Span<const int64_t> text)>;
  // Like Sample for each prompt, with the prompt's seed and stop tokens instead
  // of those in `options`. Calls `ended` after each token, and of the callbacks
  // in `options` only `stop`. UNIMPLEMENTED if the objective can't continue
  // several prompts at once, or the model's cache is no BatchedCache.
  virtual absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      Model& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const Ended& ended, UnitRunner& runner) {
    return absl::UnimplementedError("it samples one text at a time");
  }

  // If true, Sample may keep the cache of a text until the next call, so that a
  // prompt that begins with that text, like the next turn of a conversation,
  // costs only its new tokens. Call it with false before the model or its
  // weights change. Does nothing by default.
  virtual void KeepContext(bool keep) {}
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
