// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_NON_FINITE_H_
#define CAPSTAN_TRAINER_SESSION_NON_FINITE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/sdk/strategy.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/divergence.h"
#include "trainer/session/micro_steps.h"
#include "trainer/session/session.h"
#include "trainer/session/step_in_flight.h"

namespace capstan {

// Explains to the user, and to the divergence check, which may end the run,
// what wasn't finite in skipped steps. Every rank has one; methods are
// collective and wait for the device.
class NonFiniteSteps {
 public:
  // `order` is the training data's, set before the first step. All arguments
  // must outlive this.
  NonFiniteSteps(Session* session, Divergence* divergence,
                 const DataOrder* order, MicroSteps* micro_steps)
      : session_(*session),
        divergence_(*divergence),
        order_(*order),
        micro_steps_(*micro_steps) {}

  // Called after a finite step, so that the next non-finite one is explained
  // again.
  void Finite() { explained_ = false; }

  // Called after a non-finite step: names which tensor of which rank isn't
  // finite, once for each sequence of such steps. Doesn't mention a float16
  // gradient that overflows, as loss scaling expects. `late` says whether the
  // strategy already holds the next step's gradients.
  absl::Status Explain(const StepInFlight& step, bool late);

  // Finds where the gradient of a step that was explained late came from, once
  // no gradients are needed any more.
  absl::Status FindLateOrigin();

 private:
  struct Cause;
  struct MicroBatch;

  absl::StatusOr<Cause> FindCause(const StepInFlight& step, bool late) const;
  absl::StatusOr<std::string> FindOrigin(int64_t position);
  absl::Status Try(const MicroBatch& micro_batch, bool* completed);
  // Micro-batch `index` of rank `rank` in the step at `position`.
  MicroBatch MicroBatchOf(int64_t position, int rank, int64_t index) const;

  Session& session_;
  Divergence& divergence_;
  const DataOrder& order_;
  MicroSteps& micro_steps_;
  // Whether the current sequence of non-finite steps is explained, and the
  // number of explanations so far.
  bool explained_ = false;
  int explanations_ = 0;
  // A step, and the position of its first sample, for FindLateOrigin.
  absl::optional<std::pair<int64_t, int64_t>> late_origin_;
};

// Returns the first parameter with a master in `owned` whose magnitude exceeds
// `most`; -1 if there is none.
int FirstBeyond(absl::Span<const OptimizerShard> shards,
                const std::vector<OwnedSlice>& owned, double most);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_NON_FINITE_H_
