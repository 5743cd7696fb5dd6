// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_COLLECTOR_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_COLLECTOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/darkroom/darkroom.pb.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom/ppo.h"
#include "plugins/algorithm_distillation/environment.h"
#include "plugins/sdk/collector.h"

namespace capstan::darkroom {

// A Config with defaults filled in.
struct CollectorSettings {
  std::string output;
  std::shared_ptr<const Environment> environment;
  HistoryOrigin origin;
  int tasks = 0;
  int64_t streams = 100;
  int64_t updates = 13;  // of each task
  int threads = 1;
  PpoSettings ppo;
};

// FieldErrors.
absl::StatusOr<CollectorSettings> ReadSettings(const Config& config);

// Writes the learning histories (history_file.h) of one PpoLearner per task.
// Learners run on several threads; histories are written in task order, so the
// file's bytes don't depend on the number of threads.
class DarkroomCollector : public Collector {
 public:
  static absl::StatusOr<std::unique_ptr<DarkroomCollector>> Create(
      const Config& config);

  std::string output() const override { return settings_.output; }
  // Creates the output's folder if needed. Returns the file's errors.
  absl::Status Collect(const CollectProgress& progress) override;
  // Whether the file is of the environment that the config names. What the
  // config leaves out, it takes as the file has it.
  absl::Status CheckOutput() const override;

 private:
  DarkroomCollector(const Config& config, CollectorSettings settings)
      : config_(config), settings_(std::move(settings)) {}

  const Config config_;
  const CollectorSettings settings_;
};

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_COLLECTOR_H_
