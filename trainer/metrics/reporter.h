// SPDX-License-Identifier: Apache-2.0
//
// What a user sees of a run, and what scripts read afterwards.
#ifndef CAPSTAN_TRAINER_METRICS_REPORTER_H_
#define CAPSTAN_TRAINER_METRICS_REPORTER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/measurement.h"

namespace capstan {

// Numbers by their TensorBoard tags ("train/acc_action"). In metrics.jsonl a
// tag of "train/" is without it, and other tags are written with '_' for '/'.
using TaggedNumbers = std::vector<std::pair<std::string, double>>;

// RunFacts::unit where a run reads text.
constexpr char kTokenUnit[] = "tokens";

// Of all positions those without a token, in [0, 1].
double PaddingShare(double tokens, double padding);

// One line of metrics.jsonl.
struct StepMetrics {
  int64_t step = 0;  // 1 for the first
  double loss = 0.0;
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  // So far, in RunFacts::unit: input tokens without padding, or samples; and
  // the tokens with a loss among them.
  int64_t tokens = 0;
  int64_t trained_tokens = 0;  // negative: not known
  double padding = 0.0;        // its share of this step's positions
  double step_seconds = 0.0;
  double tokens_per_second = 0.0;  // of this step, all ranks, in the same unit
  // Of rank 0's collectives in this step: what they sent; the seconds in which
  // one was under way, and those in which training waited for one. The seconds
  // are unset where the backend can't tell.
  int64_t bytes_sent = 0;
  absl::optional<double> communication_seconds;
  absl::optional<double> exposed_seconds;
  bool skipped = false;  // non-finite: no update
  absl::optional<double> loss_scale;
  // What the objective tells beside the loss; every log_every steps.
  TaggedNumbers tagged;
};

// A text by the model.
struct Generation {
  std::string prompt;
  std::string text;  // without the prompt
  // Whether it answers the prompt rather than goes on with it.
  bool answer = false;
};

struct RunFacts {
  std::string name;
  std::string output_dir;
  int world_size = 1;
  std::string device;  // "2 x CPU (1 thread each)", "8 x NVIDIA H200"
  std::string strategy;
  std::string precision;
  int64_t parameters = 0;
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int64_t accumulation = 1;
  int64_t first_step = 0;  // > 0 when resumed
  int64_t max_steps = 0;
  int64_t log_every = 10;
  // What the run's throughput counts: "tokens", "samples".
  std::string unit = kTokenUnit;
  // Steps from one to the next; 0: none.
  int64_t eval_every = 0;
  int64_t save_every = 0;
};

// Bytes of one category of memory; unset: not known.
struct CategoryBytes {
  std::string category;  // "optimizer_state"; "total"
  absl::optional<int64_t> predicted;
  absl::optional<int64_t> measured;
};

// summary.json, keys as the fields are named; those of tokens are named after
// the unit, and trained_tokens and padding are there where that is tokens.
struct RunSummary {
  std::string status;  // "completed", "stopped", "failed"
  int64_t steps = 0;
  std::string unit = kTokenUnit;  // as in RunFacts
  int64_t tokens = 0;
  int64_t trained_tokens = 0;  // negative: not known
  double padding = 0.0;        // its share of the run's positions
  int64_t parameters = 0;
  int world_size = 1;
  std::string strategy;
  std::string precision;
  double ready_seconds = 0.0;
  double step_seconds_median = 0.0;
  double tokens_per_second = 0.0;
  // Medians of a step, as in StepMetrics.
  int64_t bytes_sent_per_step = 0;
  absl::optional<double> communication_seconds;
  absl::optional<double> exposed_communication_seconds;
  // Per rank: the most that the process has held, on a GPU the most that its
  // tensors have held there.
  std::vector<int64_t> peak_memory_bytes;
  // Per rank: the most that the process has held in host memory beyond what it
  // held when it began to set up.
  std::vector<int64_t> memory_growth_bytes;
  // Of a rank's process on a CPU, what `plan` said; "process_memory" in
  // summary.json, with the largest of peak_memory_bytes.
  absl::optional<int64_t> planned_process_bytes;
  // Of tensors on the device, when they held most, on the rank that held most;
  // ends with "total". An object by category in summary.json.
  std::vector<CategoryBytes> memory;
  absl::optional<double> final_loss;
  absl::optional<double> eval_loss;  // the last
  // The lowest, and after which step.
  absl::optional<double> best_eval_loss;
  absl::optional<int64_t> best_step;
};

// Rank 0's reporter: banner, progress bar (plain lines every log_every steps
// where standard output is no terminal), samples, OUTPUT/metrics.jsonl and
// generations.jsonl, TensorBoard event files in OUTPUT/tensorboard,
// OUTPUT/summary.json and the table at the end. One thread. Writing errors are
// kept and returned by Status rather than stopping a step half done.
class Reporter {
 public:
  // Appends to what a resumed run has written: lines of steps beyond
  // facts.first_step are dropped, so that no step is there twice.
  static absl::StatusOr<std::unique_ptr<Reporter>> Create(
      const RunFacts& facts);
  virtual ~Reporter();

  virtual void Banner() = 0;
  virtual void Step(const StepMetrics& metrics) = 0;
  virtual void Eval(int64_t step, double eval_loss,
                    const TaggedNumbers& tagged) = 0;
  // What the objective has measured beyond it.
  virtual void Measured(int64_t step, const Measurement& measurement) = 0;
  // Names of the curves among it, each drawn as OUTPUT/NAME.svg.
  virtual std::vector<std::string> pictures() const = 0;
  // That an evaluation is so far, in [0, 1].
  virtual void Evaluating(double done) = 0;
  // What the model has written: title e.g. "after step 50". Shown beside what
  // it wrote to the same prompts before training (step 0, if it did).
  virtual void Generations(int64_t step, const std::string& title,
                           const std::vector<Generation>& generations) = 0;
  // Whether generations.jsonl has some of step `step`, made before the run was
  // resumed.
  virtual bool HasGenerations(int64_t step) const = 0;
  // One line for the user, above the bar.
  virtual void Note(const std::string& line) = 0;
  // Lines for the user, as they are, each ended.
  virtual void Table(const std::string& lines) = 0;
  // summary.json and the table.
  virtual void Finish(const RunSummary& summary) = 0;
  // The first error in writing anything, or OK.
  virtual absl::Status status() const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_REPORTER_H_
