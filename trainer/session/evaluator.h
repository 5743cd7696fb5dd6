// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_EVALUATOR_H_
#define CAPSTAN_TRAINER_SESSION_EVALUATOR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/session/run_checkpoints.h"
#include "trainer/session/session.h"

namespace capstan {

// What a run does between its steps: evaluations, with what follows from them
// (the best checkpoint, an early end), and texts by the model. Collective. A
// signal breaks them off and sets session->stopping.
class Evaluator {
 public:
  Evaluator(Session* session, RunCheckpoints* checkpoints);

  // After the step that the run has come to, unless that has been evaluated.
  absl::Status Evaluate();
  // Texts by the model, if the config has prompts. `title`: "after step 50".
  // A sample that can't be made is noted, and the run goes on.
  absl::Status Sample(const std::string& title);
  // Before the first step: the first samples, or the evaluation and samples
  // that a signal broke off before the run was resumed.
  absl::Status CatchUp();

 private:
  // Whether it is the best yet, and what follows; the same on all ranks.
  absl::Status Remember(double eval_loss);
  absl::StatusOr<std::vector<Generation>> SampleAll(const std::string& title);
  absl::StatusOr<Generation> SampleOne(const SamplePrompt& prompt);

  Session& session_;
  RunCheckpoints& checkpoints_;
  const std::vector<SamplePrompt> prompts_;
  int64_t evaluated_step_ = -1;
  bool told_empty_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVALUATOR_H_
