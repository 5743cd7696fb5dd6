// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/comm/agree.h"
#include "host/plugins/plugin_host.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/whose_code.h"

namespace capstan {

PluginNames PluginNamesOf(const RunConfig& config) {
  const auto named = [](const char* slot, const google::protobuf::Any& any) {
    const std::string package = PackageOf(TypeOf(any));
    return absl::StrCat(slot, package.empty() ? "" : " ", package);
  };
  return {named("model", config.model()),
          named("objective", config.objective()),
          named("strategy", config.strategy()),
          named("optimizer", config.optimizer()),
          named("train_data", config.train_data())};
}

CheckpointParts Session::Checkpointed() {
  CheckpointParts checkpointed;
  checkpointed.specs = &parts.model->parameters();
  checkpointed.shards = parts.strategy->OptimizerShards();
  checkpointed.state = &optimizer_state;
  checkpointed.state_names = parts.optimizer->state_names();
  for (StateShape& shape :
       StateShapesOf(*parts.optimizer, *checkpointed.specs)) {
    checkpointed.state_specs.push_back(std::move(shape.spec));
    checkpointed.state_numels.push_back(std::move(shape.numels));
  }
  checkpointed.strategy = parts.strategy.get();
  checkpointed.owned = parts.strategy->OwnedSlices();
  checkpointed.group = group.get();
  checkpointed.config_text = config_text;
  checkpointed.identity = identity;
  return checkpointed;
}

absl::Status Session::Publish() {
  return CatchAll([this] {
    const WhoseCode code(plugins.strategy, "PublishParameters");
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
  summary.saving = saving_cost;
  if (state.best_step >= 0) {
    summary.best_eval_loss = state.best_eval_loss;
    summary.best_step = state.best_step;
  }
  return summary;
}

std::string ExitText(const Session& session, int code, bool on_main) {
  const PluginNames& plugins = session.plugins;
  const absl::string_view phase(session.phase);
  std::vector<std::string> whose;
  if (phase == kForwardPhase) {
    whose.push_back(plugins.objective);
  }
  if (phase == kForwardPhase || phase == kBackwardPhase) {
    whose.push_back(plugins.model);
  }
  if (phase == kOptimizerPhase) {
    whose.push_back(plugins.optimizer);
  }
  if (phase == kBackwardPhase || phase == kOptimizerPhase) {
    whose.push_back(plugins.strategy);
  }
  // Batches are also read on another thread.
  if (phase == kDataPhase || !on_main) {
    whose.push_back(plugins.train_data);
  }
  return absl::StrCat("step ", session.state.step + 1,
                      phase.empty() ? "" : absl::StrCat(" (", phase, ")"),
                      ": exit(", code, ") was called, which no plugin may do",
                      whose.empty() ? "" : "; at that time ran ",
                      absl::StrJoin(whose, ", "));
}

}  // namespace capstan
