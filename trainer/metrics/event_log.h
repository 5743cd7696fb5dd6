// SPDX-License-Identifier: Apache-2.0
//
// OUTPUT/events.jsonl: what happens in a run besides its steps, one JSON object
// per line: time, step, kind, text, and, only if set, seconds and id. Lines of
// a part of the run that a resumed run repeats stay in it.
#ifndef CAPSTAN_TRAINER_METRICS_EVENT_LOG_H_
#define CAPSTAN_TRAINER_METRICS_EVENT_LOG_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "trainer/metrics/appended_lines.h"

namespace capstan {

// Kinds of events. A process of a run begins with one of the first three.
constexpr char kStartEvent[] = "start";
constexpr char kResumeEvent[] = "resume";
constexpr char kRestartEvent[] = "restart";  // by the launcher
constexpr char kSaveEvent[] = "save";
constexpr char kEvaluationEvent[] = "evaluation";
constexpr char kSkippedEvent[] = "skipped";  // a step without an update
constexpr char kSpikeEvent[] = "spike";
constexpr char kWitnessEvent[] = "witness";  // a failure that it saw
constexpr char kWarningEvent[] = "warning";
constexpr char kNoteEvent[] = "note";  // what else the user was told
constexpr char kControlEvent[] = "control";
constexpr char kStopEvent[] = "stop";  // by a signal or train.control
constexpr char kEndEvent[] = "end";    // completed or failed

struct RunEvent {
  std::string kind;
  int64_t step = 0;  // the last step done
  std::string text;
  absl::optional<double> seconds;  // that training waited for it
  std::string id;                  // of the request that it answers
};

// A run trains without it, too. One thread.
class EventLog {
 public:
  explicit EventLog(std::string path) : path_(std::move(path)) {}

  // The first event opens the file. After an error, which is returned once,
  // nothing is written any more.
  absl::Status Add(const RunEvent& event);
  // Whether the last event was of this kind and step.
  bool LastWas(const std::string& kind, int64_t step) const {
    return last_.kind == kind && last_.step == step;
  }

 private:
  absl::Status Write(const RunEvent& event);

  const std::string path_;
  absl::optional<AppendedLines> lines_;
  bool failed_ = false;
  RunEvent last_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_EVENT_LOG_H_
