// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
#define CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/plan.h"

namespace capstan {

// A loss as a sum and a count; the core divides once, over the whole step.
struct LossSum {
  at::Tensor sum;      // scalar float32, with gradient in training
  int64_t count = 0;   // targets; 0 is legal and contributes nothing
  int64_t tokens = 0;  // in unit(): input tokens without padding, or samples
  // [metrics().size(), 2] float64 on the model's device, without gradient: each
  // metric's sum and divisor or, in training if its tag ends in "_max",
  // greatest value, 0 or more, and a divisor that isn't 0. May be undefined if
  // there are none, or, unless StepInfo::thorough is set, if they cost more
  // than the loss.
  at::Tensor metrics;
  int64_t padding = 0;   // computed positions that hold no token
  int64_t trained = -1;  // tokens with a loss; negative: equal to `count`
};

// Values at x = 1, 2, ..: one for each episode, say.
struct MeasuredCurve {
  std::string name;  // of OUTPUT/NAME.svg and TensorBoard's histogram eval/NAME
  std::string x_label;
  std::string y_label;
  std::vector<double> values;
};

// Written as OUTPUT/NAME.npy, float64.
struct MeasuredArray {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<double> values;  // row-major
};

struct Measurement {
  std::vector<std::pair<std::string, double>> scalars;  // full tags, in order
  std::vector<MeasuredCurve> curves;
  std::vector<MeasuredArray> arrays;
};

struct MetricTags {
  std::string train;  // "train/acc_action"
  std::string eval;   // "eval/acc_action"; "": evaluations don't have it
};

struct StepInfo {
  uint64_t seed = 0;  // the run's
  bool training = false;
  std::vector<double> totals;  // StepTotals, summed over all ranks' batches
  bool thorough = false;       // wants metrics() that cost more than the loss
};

struct MeasureInfo {
  uint64_t seed = 0;  // the run's
  int rank = 0;
  int world_size = 1;
  bool last = false;  // after the run's last step
  std::function<void(double done)> progress = [](double) {};  // done: in [0, 1]
  // Polled before each forward, equally often on all ranks; once it is true,
  // Measure returns CANCELLED. May throw.
  std::function<bool()> stop = [] { return false; };
  // As RolloutInfo's, in place of `stop` where ranks don't know how many
  // forwards the others run. Also true once the run is to stop: who isn't done
  // then returns CANCELLED.
  std::function<bool(bool done)> all_done = [](bool done) { return done; };
};

// Unset fields take the objective's config, then TokenModel::generation_config.
struct SampleOptions {
  int64_t max_new_tokens = 0;  // 0: the objective's config
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  // Keeps tokens with at least this share of the likeliest one's probability.
  absl::optional<double> min_p;
  // Divides logits of tokens in the text, multiplies negative ones; 1: neither.
  absl::optional<double> repetition_penalty;
  absl::optional<int64_t> no_repeat_ngram_size;  // in a text; 0: no limit
  bool greedy = false;
  uint64_t seed = 0;
  bool stop_at_eos = true;
  std::vector<int64_t> stop_tokens;  // besides the model's, for stop_at_eos
  // Whether `text`, prompt included, ends here. Called after each token, if
  // tokens are chosen from left to right. May be null.
  std::function<bool(absl::Span<const int64_t> text)> ended;
  std::function<void(int64_t token)> on_token;  // of each token; may be null
  // Replaces on_token in other orders: called after each step with the whole
  // text, with the model's mask_token at positions not yet chosen. May be null.
  std::function<void(absl::Span<const int64_t> text)> on_text;
  std::function<bool()> stop = [] { return false; };  // as MeasureInfo::stop
};

struct BatchPrompt {
  std::vector<int64_t> ids;          // at least one
  uint64_t seed = 0;                 // of its random numbers
  std::vector<int64_t> stop_tokens;  // as SampleOptions::stop_tokens
};

// When a search may end before its texts reach the greatest length.
enum class BeamsEnd {
  kUnlikelyToImprove,  // by the score at the present length
  kOnceFull,           // as soon as there are as many texts as beams
  kCannotImprove,      // by the score at the greatest length
};

struct BeamSettings {
  int64_t beams = 1;
  double length_penalty = 1.0;  // score: log-probability / length ^ this
  BeamsEnd end = BeamsEnd::kUnlikelyToImprove;
};

struct Beam {
  std::vector<int64_t> text;  // prompt included
  double score;
};

// How samples become a step's rows.
struct RolloutPlan {
  // Consecutive rows of the run's order that are the same sample: the global
  // batch is a multiple of it.
  int64_t rows_per_sample = 1;
  // Consecutive steps that get the same samples, the first one's number is 1
  // more than a multiple of it.
  int64_t steps_per_sample = 1;
};

struct RolloutInfo {
  uint64_t seed = 0;  // the run's
  int64_t step = 0;   // from 1
  int rank = 0;
  int world_size = 1;
  // Returns whether `done` is true on all ranks. Collective. May throw. A rank
  // that is done runs forwards, and drops their results, until this returns
  // true, since others' forwards may contain collectives.
  std::function<bool(bool done)> all_done = [](bool done) { return done; };
  // Adds up over ranks, in place. Collective. May throw.
  std::function<void(absl::Span<double> values)> all_sum =
      [](absl::Span<double>) {};
  // kSamplePosition of the step's first row, and its rows on all ranks.
  int64_t first_position = 0;
  int64_t global_batch_size = 0;
  // Calls `forwards` while the model has the weights with which the run began
  // (Model::InitialValue), and returns its status. Collective, as gathers of
  // these weights may be.
  std::function<absl::Status(const std::function<absl::Status()>& forwards)>
      with_initial_weights = [](const std::function<absl::Status()>& forwards) {
        return forwards();
      };
  // Ranks that share rows (TokenModel::SetSequenceGroup) get the same
  // micro-batches: how many they are, and this one's place among them.
  int sequence_ranks = 1;
  int sequence_index = 0;
};

class Objective {
 public:
  virtual ~Objective();

  // Checks that model and data fit this objective and each other.
  virtual absl::Status Check(Model& model, const DatasetReader& data) const = 0;

  // Returns Compute's count, without computing the loss.
  virtual int64_t CountTargets(const Batch& batch,
                               const StepInfo& info) const = 0;

  // The length of StepTotals, for losses of several means: the core sums these
  // over micro-batches and ranks before the step's first forward. 0: none.
  virtual int step_totals() const { return 0; }
  virtual std::vector<double> StepTotals(const Batch& batch,
                                         const StepInfo& info) const {
    return {};
  }

  // Of LossSum::tokens: "tokens", or "samples" if data isn't text. Constant.
  virtual std::string unit() const { return "tokens"; }

  // The tags of LossSum::metrics. Constant.
  virtual std::vector<MetricTags> metrics() const { return {}; }

  // Computes the loss of a batch that is on the model's device.
  virtual LossSum Compute(Model& model, const Batch& batch,
                          const StepInfo& info, UnitRunner& runner) = 0;

  // By name, from an evaluation's mean loss: {"perplexity", e^loss}, say.
  virtual std::vector<std::pair<std::string, double>> DerivedFromLoss(
      double loss) const {
    return {};
  }

  // Returns this rank's share of an evaluation's measurements, or nothing.
  // Summarize gets the sums over ranks, so all have one length, with 0 for what
  // others measure. Ranks run the model equally often, without gradients.
  virtual absl::StatusOr<std::vector<double>> Measure(
      Model& model, const DatasetReader& eval_data, const MeasureInfo& info,
      UnitRunner& runner) {
    return std::vector<double>();
  }
  virtual Measurement Summarize(absl::Span<const double> sums,
                                const MeasureInfo& info) const {
    return {};
  }

  // Continues `prompt` (at least one token) without gradients, and returns
  // both. UNIMPLEMENTED if the objective can't sample.
  virtual absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) = 0;

  // Whether a row's text, prompt included, ends here; may be null.
  using Ended = std::function<bool(size_t row, absl::Span<const int64_t> text)>;
  // Like Sample for each prompt, with its seed and stop tokens. Calls `ended`
  // after each token, and of options' callbacks only `stop`. UNIMPLEMENTED if
  // it can't, or the model's cache is no BatchedCache.
  virtual absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      Model& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const Ended& ended, UnitRunner& runner) {
    return absl::UnimplementedError("it samples one text at a time");
  }

  // Returns the `beams` best texts that begin with `prompt` (at least one
  // token), best first. Ignores on_token and options of random draws.
  // UNIMPLEMENTED if not from left to right, or the cache is no BatchedCache.
  virtual absl::StatusOr<std::vector<Beam>> SearchBeams(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, const BeamSettings& settings,
      UnitRunner& runner) {
    return absl::UnimplementedError(
        "needs an objective that writes from left to right");
  }

  // Lets Sample keep a text's cache for a next prompt that begins with it. Call
  // it with false before the model or its weights change.
  virtual void KeepContext(bool keep) {}

  // Functions that were added after 1.0, in the places of Rooms (plugin.h).

  // Returns what this rank has gathered beside the model (a mean reward), or
  // "", for checkpoints. If the number of ranks has changed, rank r gets that
  // of the former rank r modulo their number.
  virtual std::string SaveState() const;  // Room1
  // Called before the first step, and when a run goes back to a checkpoint.
  // `state` is never "". INVALID_ARGUMENT if it can't be read.
  virtual absl::Status RestoreState(absl::string_view state);  // Room2
  // Whether Rollout is called. Constant.
  virtual bool has_rollouts() const;  // Room3
  // Makes a step's micro-batches, on the model's device, into those that
  // CountTargets, StepTotals and Compute get, by sampling from the model, say.
  // In training, without gradients. Keeps the number of micro-batches and of
  // their rows, and kSamplePosition. A retried step calls it again with the
  // same batches.
  virtual absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                               const RolloutInfo& info,
                               UnitRunner& runner);  // Room4
  // As Strategy::own_curve, if the curve doesn't follow from config and data.
  virtual absl::optional<OwnCurve> own_curve() const;  // Room5
  // Whether several ranks may call Compute with a micro-batch whose rows the
  // model divides (TokenModel::SetSequenceGroup): the sums add up to one
  // rank's, and the core counts targets, tokens and padding once. True if it
  // takes only CrossEntropySum, RowLosses' results or TextScores' from the
  // model, but for `thorough` metrics, and if SaveState returns the same on
  // each of them.
  virtual bool allows_divided_rows() const;  // Room6
  // Of an objective with rollouts. Constant.
  virtual RolloutPlan rollout_plan() const;  // Room7
  // Of one that allows_divided_rows(): whether each rank's sum is that of whole
  // rows, as with RowLosses and TextScores, and no part of it. One rank's then
  // counts.
  virtual bool has_whole_sums() const;  // Room8

 private:
  // Room to grow (plugin.h).
  virtual void Room9();
  virtual void Room10();
  virtual void Room11();
  virtual void Room12();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
