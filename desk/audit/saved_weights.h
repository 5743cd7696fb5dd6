// SPDX-License-Identifier: Apache-2.0
//
// Whether the weights that a run has saved are those of its receipts.
#ifndef CAPSTAN_DESK_AUDIT_SAVED_WEIGHTS_H_
#define CAPSTAN_DESK_AUDIT_SAVED_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/session/receipt_chain.h"

namespace capstan {

struct SavedWeights {
  // Those that are what the receipts have: "checkpoints/step-00000020", "final"
  std::vector<std::string> same;
  // What isn't compared, and why: "final: its model card names no chain"
  std::vector<std::string> left_out;
  // Of the first that isn't what the receipts have, or is damaged.
  absl::Status error;
};

// Compares the run in `folder`: its newest checkpoint's identity and weights,
// and those of final/ by the chain on its model card. Reads these weights once,
// and opens no plugin.
SavedWeights CompareSavedWeights(const std::string& folder,
                                 const Receipts& receipts);

// The step and the chain that the text of a model card has of its weights.
struct CardChain {
  int64_t step = -1;  // -1: none
  std::string chain;
};
CardChain ChainOnCard(const std::string& card);

}  // namespace capstan

#endif  // CAPSTAN_DESK_AUDIT_SAVED_WEIGHTS_H_
