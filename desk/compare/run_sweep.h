// SPDX-License-Identifier: Apache-2.0
//
// Trains what a sweep lists, and reports it.
#ifndef CAPSTAN_DESK_COMPARE_RUN_SWEEP_H_
#define CAPSTAN_DESK_COMPARE_RUN_SWEEP_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/compare/compare_config.h"
#include "host/config/load_config.h"

namespace capstan {

struct SweepCall {
  int gpus = 0;  // 0: the runs train on the CPU
  std::vector<std::string> plugin_path;
  // Makes the report's folder and returns its path.
  std::function<absl::StatusOr<std::string>()> prepare_folder;
  // Tells the user how to go on, after a signal; returns the exit code.
  std::function<int(const std::string& folder, int signal)> interrupted;
};

// Prepares every run, which finds errors before the first begins, trains them,
// and writes the reports. Runs that are completed in the folder stay; others
// there go on. Returns the exit code: 1 if no point has a value.
absl::StatusOr<int> RunSweep(const LoadedCompare& loaded,
                             const ConfigContext& context,
                             const SweepCall& call);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_RUN_SWEEP_H_
