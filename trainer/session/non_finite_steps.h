// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_NON_FINITE_STEPS_H_
#define CAPSTAN_TRAINER_SESSION_NON_FINITE_STEPS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/dataset.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/divergence.h"
#include "trainer/session/non_finite.h"
#include "trainer/session/session.h"
#include "trainer/session/step_records.h"
#include "trainer/session/step_sums.h"

namespace capstan {

// Gives one micro-batch.
using ReadOneBatch = std::function<absl::StatusOr<Batch>()>;

// Tells the user what wasn't finite in the steps that make no update for it,
// and the divergence check, which may end the run. On all ranks; methods are
// collective.
class NonFiniteSteps {
 public:
  // A step of a single micro-batch, up to complete gradients, in place of the
  // ones that are there. `completed`: as TrainStep::Try.
  using Backpropagate = std::function<absl::Status(
      int64_t step, const ReadOneBatch& read, bool* completed)>;

  // `order`: the training data's, known before the first step. All of them
  // outlive this.
  NonFiniteSteps(Session* session, Divergence* divergence,
                 const DataOrder* order, Backpropagate backpropagate);

  // After a finite step: the next one that isn't is told of again.
  void Finite() { explained_ = false; }

  // After one that isn't: names what wasn't finite, once for each row of such
  // steps. A float16 gradient that overflows is loss scaling at work, and isn't
  // told of. `late`: the next step's gradients are there already.
  absl::Status Explain(const StepSums& sums, const IssuedStep& step, bool late);

  // Where the gradient of a step that was explained late came from, once no
  // gradients are needed any more.
  absl::Status FindLateOrigin();

 private:
  absl::StatusOr<std::string> FindOrigin(int64_t position);
  absl::Status TryMicroBatch(const MicroBatchPlace& place, bool* completed);

  Session& session_;
  Divergence& divergence_;
  const DataOrder& order_;
  const Backpropagate backpropagate_;
  // Whether the non-finite steps that the last one belongs to are explained,
  // and how often that was done.
  bool explained_ = false;
  int explanations_ = 0;
  // A step, and the position of its first sample, for FindLateOrigin.
  absl::optional<std::pair<int64_t, int64_t>> late_origin_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_NON_FINITE_STEPS_H_
