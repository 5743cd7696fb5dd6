// SPDX-License-Identifier: Apache-2.0
//
// What all ranks must have alike. Under a launcher each host has files, flags
// and libraries of its own.
#ifndef CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_
#define CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/process_group.h"
#include "trainer/session/session.h"

namespace capstan {

// What a fact is about, as the object of "rank 1 has", and its value.
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

// Refuses a config that isn't rank 0's, but for where ranks and output are:
// each host reads files and flags of its own. Collective.
absl::Status CompareConfigs(const Session& session);

// The trainer's build, the data and the model, before anything is set up; and
// what the run goes on with once a checkpoint is restored. Collective.
absl::Status CompareParts(const Session& session);
absl::Status CompareStart(const Session& session);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_
