// SPDX-License-Identifier: Apache-2.0
//
// What peers that train with transformers' Trainer have in common.
#ifndef CAPSTAN_DESK_IMPORT_TRANSFORMERS_H_
#define CAPSTAN_DESK_IMPORT_TRANSFORMERS_H_

#include "desk/import/draft.h"

namespace capstan::import {

// transformers.TrainingArguments, in two parts.
extern const char kRunRows[];
extern const char kTrainingArguments[];

// What transformers.TrainingArguments has by default, but for the learning
// rate.
extern const char kTrainerDefaults[];

// LoRA's settings as its peers call them.
extern const char kLoraRows[];

// Those of training on pairs of answers.
extern const char kPairRows[];

// accelerate's fsdp_config, which axolotl reads, too.
extern const char kFsdpRows[];

}  // namespace capstan::import

#endif  // CAPSTAN_DESK_IMPORT_TRANSFORMERS_H_
