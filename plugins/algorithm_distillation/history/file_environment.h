// SPDX-License-Identifier: Apache-2.0
//
// What a file of histories is of: what it says (HistoryOrigin), what a config
// says, or what its histories show; and whether they could have happened there.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_FILE_ENVIRONMENT_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_FILE_ENVIRONMENT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/environment.h"
#include "plugins/algorithm_distillation/history/ad_history.pb.h"

namespace capstan::ad_history {

// FieldErrors: the file's, and of "tasks" or "environment" if that says another
// thing than the file.
absl::StatusOr<std::shared_ptr<const Environment>> FindEnvironment(
    const darkroom::HistoryReader& file, const Config& config);

// Plays a task's actions again: INVALID_ARGUMENT at the first observation,
// reward or end of an episode that `history`, of `path`, has otherwise. After
// an episode's last step it may show where that led, or the next episode's
// start.
absl::Status CheckHistory(const Environment& environment,
                          const std::string& path, int task,
                          const darkroom::History& history);

}  // namespace capstan::ad_history

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_HISTORY_FILE_ENVIRONMENT_H_
