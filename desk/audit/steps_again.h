// SPDX-License-Identifier: Apache-2.0
//
// A run's steps, run again from the checkpoint before them.
#ifndef CAPSTAN_DESK_AUDIT_STEPS_AGAIN_H_
#define CAPSTAN_DESK_AUDIT_STEPS_AGAIN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/session/receipt_chain.h"

namespace capstan {

// What a step's line says otherwise than the same step run again.
struct ReceiptDifference {
  int64_t step = 0;
  std::string key;  // the first that differs: "rows", "loss"
  std::string recorded;
  std::string again;
};

// The first step of `again` whose line differs in what was trained from that of
// `recorded`; a process's first line is compared by its weights.
absl::optional<ReceiptDifference> FindReceiptDifference(
    const Receipts& recorded, const Receipts& again);

// What a difference in `key` means: "the rows' contents (train_data)".
std::string MeaningOf(const std::string& key);

struct StepsAgainRequest {
  std::string run;   // its folder
  int64_t step = 0;  // the last to run
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
  // Called with the steps done and those to do.
  std::function<void(int64_t done, int64_t of)> progress;
};

struct StepsAgain {
  int64_t from = 0;   // after which step it began
  int signal = 0;     // that stopped it, or 0
  Receipts receipts;  // of the steps run again
};

// Runs the steps after the newest checkpoint before `step`, or all from the
// beginning, up to `step`, in a folder that is removed; nothing in the run's
// folder changes. Errors are the run's own, with why it failed.
absl::StatusOr<StepsAgain> RunStepsAgain(const StepsAgainRequest& request,
                                         const Receipts& recorded);

}  // namespace capstan

#endif  // CAPSTAN_DESK_AUDIT_STEPS_AGAIN_H_
