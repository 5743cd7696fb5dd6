// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_CHECKPOINTS_MERGE_ADAPTER_H_
#define CAPSTAN_DESK_CHECKPOINTS_MERGE_ADAPTER_H_

#include <string>

#include "absl/status/statusor.h"

namespace capstan {

struct AdapterMerge {
  std::string base;     // a Hugging Face folder
  std::string adapter;  // a PEFT folder
  std::string output;   // must be missing or empty
  // Merge even if the adapter was trained on other weights.
  bool other_base = false;
};

// Writes `output`, a complete Hugging Face folder: `base` with the LoRA adapter
// merged into its weights, W + scale * B A (computed in float32, rounded to W's
// dtype), sharded as in `base`; for a base that is quantised, or was for
// training, W is what its format keeps, and the note says how far rounding
// moved the weights; `base`'s other files (CopyModelFiles); and the adapter's
// tokenizer, if any, with its special tokens. A head of scores that only the
// adapter has takes the place of `base`'s head. Holds one tensor in memory at a
// time. Written to a hidden sibling and renamed. An adapter that doesn't fit
// the base is an error that names the module; one trained on other weights
// (CheckBaseWeights) an error that names both. Returns a note for the user, or
// "".
absl::StatusOr<std::string> MergeAdapter(const AdapterMerge& merge);

}  // namespace capstan

#endif  // CAPSTAN_DESK_CHECKPOINTS_MERGE_ADAPTER_H_
