// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_WATCH_COLLECTIVE_LOG_H_
#define CAPSTAN_CLUSTER_WATCH_COLLECTIVE_LOG_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// "all-reduce 812 of bucket 3 (25.0 MiB)", for people; `group` is told unless
// it is the first.
std::string CollectiveText(absl::string_view name, uint64_t number,
                           absl::string_view label, int64_t bytes,
                           int group = 0);

// Records a process group's collectives in this process's ledger. Groups are
// told apart by the order in which a process creates them, the same on all of
// its ranks. Some tens of nanoseconds a call, without locks; thread-safe.
class CollectiveLog {
 public:
  // `sees_ends`: Finished will be called. `in_order`: a collective begins only
  // after the previous one has ended.
  explicit CollectiveLog(bool sees_ends, bool in_order = true);

  // Records the next collective, of `bytes` in all, with this thread's
  // CollectiveLabel. Returns its number.
  uint64_t Issued(const char* name, int64_t bytes) const;
  // Records that this rank has begun the collective and waits for the others.
  void Started(uint64_t number) const;
  // Records an end; collectives may end in any order.
  void Finished(uint64_t number) const;

 private:
  const int group_;  // in the ledger; -1: there are too many
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_COLLECTIVE_LOG_H_
