// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MERGE_ADAPTER_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MERGE_ADAPTER_H_

#include <string>

#include "absl/status/statusor.h"

namespace capstan {

struct AdapterMerge {
  std::string base;     // a Hugging Face folder
  std::string adapter;  // a PEFT folder
  std::string output;   // must not exist or be empty
  // Merge although the adapter says that it was trained on other weights.
  bool other_base = false;
};

// Writes `output`, a whole Hugging Face folder: `base` with the LoRA adapter in
// its weights, W + scale * B A (computed in float32, then rounded to what W is
// stored as), in the same files as in `base`; `base`'s other files
// (CopyModelFiles); and the adapter's tokenizer, if it has one, with its
// special tokens. One tensor is in memory at a time. `output` is written beside
// and renamed. An adapter that doesn't fit the base is an error that names the
// module; one that was trained on a base with other weights (BaseChecksum), an
// error that names both. Returns what there is to tell, maybe "".
absl::StatusOr<std::string> MergeAdapter(const AdapterMerge& merge);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MERGE_ADAPTER_H_
