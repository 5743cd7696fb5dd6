// SPDX-License-Identifier: Apache-2.0
//
// Checks what must be equal on all ranks. Under a launcher each host has files,
// flags and libraries of its own.
#ifndef CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_
#define CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/process_group.h"
#include "trainer/session/session.h"

namespace capstan {

// A value to compare, and its name as the object of "rank 1 has".
struct RankFact {
  std::string what;   // "another model"
  std::string value;  // one line; "": unknown, as good as any
};

// Compares this rank's facts with rank 0's, of the same kinds in the same
// order. If they differ: FAILED_PRECONDITION on the ranks that differ, "rank 1
// has WHAT than rank 0: VALUE, where rank 0 has VALUE; HINT". Collective.
absl::Status CompareFacts(ProcessGroup& group,
                          const std::vector<RankFact>& facts,
                          const std::string& hint);

// Refuses a config that differs from rank 0's in more than the places of ranks
// and output. Collective.
absl::Status CompareConfigs(const Session& session);

// CompareParts compares the trainer's build, the data and the model before
// anything is set up; CompareStart compares the state that the run starts from,
// once a checkpoint is restored. Collective.
absl::Status CompareParts(const Session& session);
absl::Status CompareStart(const Session& session);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_
