// SPDX-License-Identifier: Apache-2.0
//
// "optimizer.learning_rate<1e-4": which runs are meant.
#ifndef CAPSTAN_DESK_RUNS_CONDITIONS_H_
#define CAPSTAN_DESK_RUNS_CONDITIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "desk/run_folder/run_record.h"

namespace capstan {

// NAME OP VALUE. A name is name, status, steps, seconds, bytes or tag, a metric
// of metrics.jsonl or a field of the config. < <= > >= compare numbers; = and
// != numbers or else texts; ~ finds a piece of a text.
struct Condition {
  std::string name;
  std::string op;
  std::string value;
};

absl::StatusOr<Condition> ParseCondition(absl::string_view text);

// The values that a run has by this name, none if it has no such thing.
std::vector<std::string> ValuesOf(const ListedRun& run,
                                  const std::string& name);

// Whether one of the run's values meets the condition; != asks that none is
// equal. A run without such a value meets none but !=.
bool Meets(const ListedRun& run, const Condition& condition);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUNS_CONDITIONS_H_
