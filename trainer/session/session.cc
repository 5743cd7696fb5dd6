// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/session.h"

#include "trainer/process_group/agree.h"

namespace capstan {

CheckpointParts Session::Checkpointed() {
  CheckpointParts checkpointed;
  checkpointed.specs = &parts.model->parameters();
  checkpointed.shards = parts.strategy->OptimizerShards();
  checkpointed.state = &optimizer_state;
  checkpointed.state_names = parts.optimizer->state_names();
  checkpointed.owned = parts.strategy->OwnedSlices();
  checkpointed.group = group.get();
  checkpointed.config_text = config_text;
  return checkpointed;
}

absl::Status Session::Publish() {
  return CatchAll([this] {
    const size_t shards = parts.strategy->OptimizerShards().size();
    for (size_t i = 0; i < shards; ++i) {
      parts.strategy->PublishShard(static_cast<int>(i));
    }
    parts.strategy->PublishParameters();
    return absl::OkStatus();
  });
}

}  // namespace capstan
