// SPDX-License-Identifier: Apache-2.0
//
// Whether what a run would be without some of its rows can be told.
#ifndef CAPSTAN_DESK_FORGET_SAME_RUN_H_
#define CAPSTAN_DESK_FORGET_SAME_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "desk/forget/run_without.h"
#include "trainer/commands/prepare.h"

namespace capstan {

// Checks that data and settings are those that the run in `folder` has had in
// all of its life, as far as they decide what is trained: by its checkpoints,
// and, as most are removed, by what its processes said when they went on.
// `prepared` is the run that would do it again from the checkpoint `from`
// (null: the beginning), with its own batch, up to step `end`.
// FAILED_PRECONDITION says what isn't the same.
absl::Status CheckSameRun(const std::string& folder,
                          const std::vector<RunSnapshot>& snapshots,
                          const RunSnapshot* from, const Prepared& prepared,
                          int64_t end);

// Checks that events.jsonl in `folder` has no change that decides what is
// trained; with `evaluations_decide` evaluations do.
absl::Status CheckHistory(const std::string& folder, bool evaluations_decide);

// Checks that all steps after `from` had batches of that many samples.
absl::Status CheckBatch(const std::vector<RunSnapshot>& snapshots,
                        const RunSnapshot* from, int64_t global_batch_size);

}  // namespace capstan

#endif  // CAPSTAN_DESK_FORGET_SAME_RUN_H_
