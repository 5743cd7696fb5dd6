// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_PLUGIN_STATE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_PLUGIN_STATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {

// Returns what rank `rank` saved of a plugin's state in the checkpoint in
// `folder`; "" if it has none. Of `plugin`, save and load aren't called.
absl::StatusOr<std::string> CheckpointPluginState(const std::string& folder,
                                                  const PluginState& plugin,
                                                  int rank);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_PLUGIN_STATE_H_
