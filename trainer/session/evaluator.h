// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_EVALUATOR_H_
#define CAPSTAN_TRAINER_SESSION_EVALUATOR_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/objective.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/run_checkpoints.h"
#include "trainer/session/session.h"

namespace capstan {

// Evaluates and samples between steps, and acts on the results (best
// checkpoint, early stop). Collective. A signal interrupts it and sets
// session->stopping.
class Evaluator {
 public:
  Evaluator(Session* session, RunCheckpoints* checkpoints);

  // Evaluates the current step unless already done.
  absl::Status Evaluate();
  // Generates texts if the config has prompts. `title`: "after step 50". A
  // failed sample is noted, and the run goes on.
  absl::Status Sample(const std::string& title);
  // Before the first step: the initial samples, or an evaluation and samples
  // interrupted before the run was resumed.
  absl::Status CatchUp();

 private:
  // Adds what one of the session's data, or the tasks, give. CANCELLED by a
  // signal.
  absl::Status MeasureData(EvaluatedData* data, TaggedNumbers* numbers,
                           std::vector<Measurement>* measurements);
  absl::Status ScoreTasks(TaggedNumbers* numbers);
  int64_t BatchSize() const;
  // Tracks the best evaluation and its consequences; the same on all ranks.
  // `measured`: all numbers of this one.
  absl::Status Remember(const TaggedNumbers& measured);
  absl::StatusOr<std::vector<Generation>> SampleAll(const std::string& title);
  absl::StatusOr<Generation> SampleOne(const SamplePrompt& prompt);
  absl::Status EndSample(const absl::Status& mine, bool in_forward,
                         StopPoll* poll);

  Session& session_;
  RunCheckpoints& checkpoints_;
  const google::protobuf::RepeatedPtrField<SamplePrompt>& prompts_;
  int64_t evaluated_step_ = -1;
  std::set<std::string> told_empty_;  // slots of data without targets
  bool told_no_metric_ = false;       // that best_metric isn't measured
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVALUATOR_H_
