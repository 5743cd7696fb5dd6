// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_AGREE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_AGREE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// OK if `mine` is OK on all ranks. Else an error on all: a rank that failed
// gets its own; the others UNAVAILABLE, since theirs isn't the cause, "rank R
// could not WHAT", where what(R) says what the first failed rank was about
// ("write out/state-00001"). Collective; also a barrier. Throws
// CommunicationError.
absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const std::function<std::string(int rank)>& what);

// The same where all ranks do one thing, "rank R could not WHAT"; what the
// collective throws is a Status, too. A rank that has lost the others
// (UNAVAILABLE) returns at once.
absl::Status AgreeOnError(ProcessGroup& group, const absl::Status& mine,
                          const char* what);

// fn(), with what it throws as a Status: for work between two collectives,
// which an exception must not skip.
absl::Status CatchAll(const std::function<absl::Status()>& fn);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_AGREE_H_
