// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_METRICS_RUN_END_H_
#define CAPSTAN_TRAINER_METRICS_RUN_END_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// What is made of a run's folder once its summary.json and its last event are
// there, by those that the trainer doesn't know; rank 0 calls each. An error is
// a warning for the user. Complete before main.
std::vector<std::function<absl::Status(const std::string& output_dir)>>&
AtRunEnd();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_RUN_END_H_
