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

RunSummary Session::Progress() const {
  RunSummary summary;
  summary.status = stopping ? "stopped" : "completed";
  summary.steps = state.step;
  summary.unit = parts.objective->unit();
  summary.tokens = state.tokens;
  summary.trained_tokens = state.trained_tokens;
  summary.padding = PaddingShare(state.tokens, state.padding);
  summary.parameters = ParameterCount(*parts.model);
  summary.world_size = group->size();
  summary.strategy = parts.strategy_name;
  summary.precision = parts.precision_name;
  if (state.step > 0) summary.final_loss = state.last_loss;
  summary.eval_loss = eval_loss;
  if (state.best_step >= 0) {
    summary.best_eval_loss = state.best_eval_loss;
    summary.best_step = state.best_step;
  }
  return summary;
}

}  // namespace capstan
