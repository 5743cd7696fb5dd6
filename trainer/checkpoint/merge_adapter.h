// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_MERGE_ADAPTER_H_
#define CAPSTAN_TRAINER_CHECKPOINT_MERGE_ADAPTER_H_

#include <string>

#include "absl/status/status.h"

namespace capstan {

// Writes `output`, a whole Hugging Face folder: `base` with the LoRA adapter of
// the PEFT folder `adapter` in its weights, W + scale * B A (computed in
// float32, then rounded to what W is stored as), in the same files as in
// `base`; `base`'s other files; and the adapter's tokenizer, if it has one,
// with its special tokens. One tensor is in memory at a time. `output` must not
// exist or be empty; it is written beside and renamed. An adapter that doesn't
// fit the base is an error that names the module.
absl::Status MergeAdapter(const std::string& base, const std::string& adapter,
                          const std::string& output);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_MERGE_ADAPTER_H_
