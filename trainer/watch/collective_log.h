// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_WATCH_COLLECTIVE_LOG_H_
#define CAPSTAN_TRAINER_WATCH_COLLECTIVE_LOG_H_

#include <cstdint>

namespace capstan {

// Records a process group's collectives in this process's ledger. Groups are
// told apart by the order in which a process creates them, the same on all of
// its ranks. Some tens of nanoseconds a call, without locks; thread-safe.
class CollectiveLog {
 public:
  // `sees_ends`: Finished will be called. `in_order`: one begins once the one
  // before has ended, or will never begin.
  explicit CollectiveLog(bool sees_ends, bool in_order = true);

  // The next collective, of `bytes` in all, labelled with this thread's
  // CollectiveLabel. Returns its number.
  uint64_t Issued(const char* name, int64_t bytes) const;
  // This rank is in it now: it has begun, and waits for the others.
  void Started(uint64_t number) const;
  // In whatever order they end.
  void Finished(uint64_t number) const;

 private:
  const int group_;  // in the ledger; -1: there are too many
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_WATCH_COLLECTIVE_LOG_H_
