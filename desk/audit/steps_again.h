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

// What the receipts say otherwise than the steps run again.
inline constexpr char kBeginning[] = "beginning";
inline constexpr char kOfRun[] = "run ";
struct ReceiptDifference {
  int64_t step = 0;
  // The first that differs, of a step: "rows", "loss"; "run KEY" of what
  // identifies the run; kBeginning: the weights after `step`, from which the
  // others were run.
  std::string key;
  std::string recorded;
  std::string again;
};

// Where `again` first differs from `recorded` in what was trained: in a setting
// that identifies the run, in the weights with which it began, in a step, or in
// the data, where a step says which of its rows. `overrides`: the --set by
// which the steps were run again, of which a setting is named first.
absl::optional<ReceiptDifference> FindReceiptDifference(
    const Receipts& recorded, const Receipts& again,
    const std::vector<std::string>& overrides = {});

// Whose libraries have another SHA-256 in `again` than the receipts have for
// the same step: "optimizer"; without what a --set has chosen.
std::vector<std::string> OtherLibraries(
    const Receipts& recorded, const Receipts& again,
    const std::vector<std::string>& overrides);

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
  // Why no step was run: it would be another run, which the checkpoint refuses.
  absl::optional<ReceiptDifference> refused;
};

// Runs the steps after the newest checkpoint before `step`, or all from the
// beginning, up to `step`, in a folder that is removed; nothing in the run's
// folder changes. Errors are the run's own, with why it failed.
absl::StatusOr<StepsAgain> RunStepsAgain(const StepsAgainRequest& request,
                                         const Receipts& recorded);

}  // namespace capstan

#endif  // CAPSTAN_DESK_AUDIT_STEPS_AGAIN_H_
