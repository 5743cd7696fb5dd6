// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RANK_RUN_H_
#define CAPSTAN_TRAINER_SESSION_RANK_RUN_H_

#include <memory>

#include "absl/status/status.h"
#include "cluster/launch/rank_info.h"
#include "cluster/watch/watchdog.h"
#include "trainer/data/data_loader.h"
#include "trainer/profile/profiler.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/divergence.h"
#include "trainer/session/evaluator.h"
#include "trainer/session/exit_guard.h"
#include "trainer/session/rank_log.h"
#include "trainer/session/run_checkpoints.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/session.h"
#include "trainer/session/slow_hosts.h"
#include "trainer/session/step.h"
#include "trainer/session/step_records.h"
#include "trainer/session/step_witness.h"

namespace capstan {

// What one rank of a run owns. SetUp (set_up.h) fills it; the loop's steps and
// due actions work on it.
struct RankRun {
  RankRun(TrainJob* job, const RankInfo& rank)
      : session(job, rank),
        records(&session),
        divergence(&session, &records),
        checkpoints(&session, &divergence),
        evaluator(&session, &checkpoints),
        step(&session, &divergence, &records),
        slow_hosts(&session),
        log(&session) {
    checkpoints.SetBeforeCopy([this] {
      StepWitness* const witness = step.witness();
      return witness == nullptr ? absl::OkStatus() : witness->BeforeSave();
    });
  }
  RankRun(const RankRun&) = delete;
  RankRun& operator=(const RankRun&) = delete;

  // An activity of the rank, for the watchdog and profiling tools.
  struct Phase {
    const Watchdog::Activity activity;
    const Range range;
  };
  // Begins an activity that lasts as long as the result lives. `name` is a
  // literal.
  Phase Doing(const char* name) const {
    return {{watchdog.get(), name, session.state.step}, Range(name)};
  }

  Session session;
  StepRecords records;
  Divergence divergence;
  RunCheckpoints checkpoints;
  Evaluator evaluator;
  TrainStep step;
  SlowHosts slow_hosts;
  RankLog log;
  std::unique_ptr<DataLoader> loader;
  std::unique_ptr<Profiler> profiler;  // null: profiling is off
  const ExitGuard exit_guard{&session};
  std::unique_ptr<Watchdog> watchdog;  // null until the ranks have met
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RANK_RUN_H_
