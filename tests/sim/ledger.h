// SPDX-License-Identifier: Apache-2.0
//
// What a simulated run has done, as its ranks say and the simulator sees, and
// the invariants.
#ifndef CAPSTAN_TESTS_SIM_LEDGER_H_
#define CAPSTAN_TESTS_SIM_LEDGER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "testing/sim/disk.h"
#include "testing/sim/world.h"

namespace capstan::sim {

constexpr char kRunFolder[] = "/shared/run";

// The value of element `i` after `step` steps: each step counts, and their
// order.
float ValueAt(int64_t step, int64_t i);

class Ledger {
 public:
  explicit Ledger(World* world);

  // Ranks say these. `group`: any text, equal on the ranks of one group.
  void Begins(int job, int hosts);
  // Since `begun` it has waited for the others of its job.
  void Joined(Time begun, int job, int hosts);
  void Met(const std::string& group);
  void LeftGroup();
  void Holds();
  void LetGo();
  void Loads(int64_t step, bool found);
  void Saved(int64_t step);
  // Violates unless it is what `step` steps make.
  void CheckState(const char* when, int64_t step, const float* values,
                  int64_t begin, int64_t count);
  void Finished(int64_t step);
  // `what`'s first word is the invariant's name.
  void Violate(const std::string& what);

  int64_t saved() const { return saved_; }
  bool have_met() const { return !groups_.empty(); }
  bool completed = false;
  // How long faults keep ranks from learning anything, at most.
  Time patience = 0;
  // When the last fault ends.
  Time disturbed_until = 0;
  // Whether ranks notice that a host is silent.
  bool watches_hosts = true;

 private:
  void OnEnd(Process* process);
  void OnDiskChange(const std::string& path);
  void CheckLearned(pid_t pid, const std::string& group, const std::string& of,
                    int tries);
  void CheckFolder(const std::string& name, const Inode& folder);

  World* const world_;
  int64_t saved_ = 0;
  std::map<pid_t, std::string> groups_;  // of ranks in a group
  std::set<pid_t> holders_;
  std::map<int, int> fewest_hosts_;  // of each job
};

// Of the world that runs.
Ledger* TheLedger();

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_LEDGER_H_
