// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DUE_ACTION_H_
#define CAPSTAN_TRAINER_SESSION_DUE_ACTION_H_

#include "absl/status/status.h"
#include "trainer/session/rank_run.h"

namespace capstan {

// Something that a run does besides steps: save, evaluate, sample. Each subject
// has a file of its own; due_actions.cc lists them in the order in which they
// are done. All ranks do the same ones: Scheduled and Due depend only on what
// is the same on all of them, such as config, step and session.stopping.
class DueAction {
 public:
  explicit DueAction(RankRun* run) : run_(*run) {}
  virtual ~DueAction() = default;
  DueAction(const DueAction&) = delete;
  DueAction& operator=(const DueAction&) = delete;

  // Its name in the watchdog and profiling tools, a literal; null if it has
  // none.
  virtual const char* name() const { return nullptr; }
  // Whether it is scheduled for the step just done. The step's sums are then
  // read before any action, even if they are deferred.
  virtual bool Scheduled() const { return false; }
  // Whether to do it now; called once the previous actions are done.
  virtual bool Due() const = 0;
  // Collective, unless its list says otherwise. An error ends the run.
  virtual absl::Status Do() = 0;

 protected:
  RankRun& run_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DUE_ACTION_H_
