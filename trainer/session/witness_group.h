// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_WITNESS_GROUP_H_
#define CAPSTAN_TRAINER_SESSION_WITNESS_GROUP_H_

#include <functional>
#include <memory>
#include <string>

#include "cluster/comm/phase_group.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// What a collective gave isn't what the ranks put into it.
struct WrongMessage {
  std::string collective;  // "the all-reduce of bucket 3"
  int from = -1;           // the run's rank whose part is wrong; -1: not known
};

struct MessageChecks {
  std::function<void(const WrongMessage&)> on_wrong;
  const PhaseGroup* phases = nullptr;
  // Makes each sum a second time, too, of a copy, and compares the bits.
  bool twice = false;
  // Whether a collective that begins now is checked; the same on all ranks.
  std::function<bool()> due = [] { return true; };
};

// Returns a group on CPUs that sends checksums beside what it sends, and
// compares them where the collective is waited for: of what is moved a parity
// of 16 words, of what is summed the sums of 1,024 numbers with random signs,
// which differ from the sums of the sums by rounding. MessageChecks::on_wrong
// is called on the thread that waits, but not where a rank has failed, since
// what is waited for then isn't sent any more: `phases` knows, if it isn't
// null. AllReduceHost's few numbers aren't checked.
std::unique_ptr<ProcessGroup> WitnessMessages(
    std::unique_ptr<ProcessGroup> group, MessageChecks checks);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_WITNESS_GROUP_H_
