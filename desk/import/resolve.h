// SPDX-License-Identifier: Apache-2.0
//
// Parts of Resolve (draft.h).
#ifndef CAPSTAN_DESK_IMPORT_RESOLVE_H_
#define CAPSTAN_DESK_IMPORT_RESOLVE_H_

#include <string>

#include "desk/import/draft.h"

namespace capstan::import {

// Whether a method learns from preferred answers.
bool IsPreference(const std::string& method);

// The objective of a run that learns from rewards; `origin` says so.
void ResolveGrpo(const std::string& origin, Draft* draft);

// What files say of how many answers are sampled at once, with `ranks`
// processes; after the batch.
void ResolveGenerations(double ranks, Draft* draft);

// train_data, eval_data and eval_sets of the sources and of facts.
void ResolveData(Draft* draft);

// Whether rows are held back, or are there to be measured.
bool HasValidation(const Draft& draft);

}  // namespace capstan::import

#endif  // CAPSTAN_DESK_IMPORT_RESOLVE_H_
