// SPDX-License-Identifier: Apache-2.0
//
// OUTPUT/ranks/rank-00003.jsonl: where a rank's time goes and what it uses, one
// JSON object per line; docs/runs.md lists the keys. It begins anew with a line
// of facts in each process of the rank.
#ifndef CAPSTAN_TRAINER_SESSION_RANK_LOG_H_
#define CAPSTAN_TRAINER_SESSION_RANK_LOG_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/types/optional.h"
#include "trainer/metrics/appended_lines.h"
#include "trainer/session/session.h"

namespace capstan {

// Every step is counted, but a line is written at most once a second, between
// two steps, and at the end, by a thread of its own: while a slow disk keeps
// that busy, the next line has to wait and covers more steps. A log that can't
// be written ends with a warning, and the run goes on. Used by the steps'
// thread.
class RankLog {
 public:
  explicit RankLog(Session* session) : session_(*session) {}
  ~RankLog() { End(); }
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  // Opens the file; call once the ranks are set up. Before that, and in runs
  // that never call it, the rest does nothing. `ready_seconds`: since the run's
  // first process was executed.
  void Begin(double ready_seconds);
  void StepBegins();
  void StepEnds();
  // Something that was done between steps; `name` is a literal.
  void Did(const char* name, double seconds) { actions_[name] += seconds; }
  // Writes what there is since the last line, and nothing from then on.
  void End();

 private:
  // What the process and its host have used so far.
  struct Use {
    double cpu_seconds = 0.0;       // of all threads
    double runqueue_seconds = 0.0;  // this thread waited for a core
    double steal_seconds = 0.0;     // of the host's cores
    double iowait_seconds = 0.0;
    int64_t major_faults = 0;
    int64_t read_bytes = 0;
  };
  static Use ReadUse();
  void WriteFacts(double ready_seconds);
  void Write(double now);
  void Add(const std::string& object);

  Session& session_;
  absl::optional<LineWriter> lines_;  // unset: nothing is written
  // Since the last line.
  int64_t steps_ = 0;
  double step_seconds_ = 0.0;
  double exposed_ = 0.0;
  double outside_ = 0.0;
  std::map<std::string, double> actions_;
  Use used_;  // at the last line
  double written_ = 0.0;
  // Of the step under way, or the end of the last.
  double since_ = 0.0;
  double exposed_before_ = 0.0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RANK_LOG_H_
