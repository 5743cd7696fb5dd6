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

// What a run does between steps: evaluations and their consequences (best
// checkpoint, early stop), and text samples. Collective. A signal interrupts
// them and sets session->stopping.
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
  // Tracks the best loss and its consequences; the same on all ranks.
  absl::Status Remember(double eval_loss);
  absl::StatusOr<std::vector<Generation>> SampleAll(const std::string& title);
  absl::StatusOr<Generation> SampleOne(const SamplePrompt& prompt);

  Session& session_;
  RunCheckpoints& checkpoints_;
  const google::protobuf::RepeatedPtrField<SamplePrompt>& prompts_;
  int64_t evaluated_step_ = -1;
  bool told_empty_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVALUATOR_H_
