// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "host/plugins/plugin_host.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// "17 WORDS", a line each.
std::string TextOf(const std::vector<BadSample>& samples) {
  constexpr size_t kMostWords = 300;
  std::string text;
  for (const BadSample& bad : samples) {
    std::string why = bad.why.substr(0, kMostWords);
    std::replace(why.begin(), why.end(), '\n', ' ');
    absl::StrAppend(&text, bad.sample, " ", why, "\n");
  }
  return text;
}

void ParseInto(absl::string_view text, std::map<int64_t, std::string>* all) {
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t sample = 0;
    if (!absl::SimpleAtoi(parts.first, &sample)) continue;
    all->emplace(sample, std::string(parts.second));
  }
}

}  // namespace

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
  checkpointed.state_shapes =
      StateShapesOf(*parts.optimizer, *checkpointed.specs);
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

absl::Status ShareBadSamples(const char* data,
                             const std::vector<BadSample>& mine,
                             Session* session, std::vector<int64_t>* known) {
  std::map<int64_t, std::string> all;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    for (const std::string& text :
         FromAllRanks(*session->group, TextOf(mine))) {
      ParseInto(text, &all);
    }
    return absl::OkStatus();
  }));
  const TrainState& state = session->state;
  const int64_t most = session->config.train().skip_bad_samples();
  for (const auto& [sample, why] : all) {
    const auto place = std::lower_bound(known->begin(), known->end(), sample);
    if (place != known->end() && *place == sample) continue;
    const auto count = static_cast<int64_t>(state.bad_samples.size() +
                                            state.bad_eval_samples.size());
    if (count >= most) {
      return absl::FailedPreconditionError(absl::StrCat(
          "step ", state.step, ": sample ", sample, " of ", data,
          " can't be read (", why, "), and the run has already passed over ",
          count, " (", absl::StrJoin(*known, ", "),
          "): mend the data, or raise train.skip_bad_samples (now ", most,
          ")"));
    }
    known->insert(place, sample);
    session->Note(absl::StrCat(
        "step ", state.step, ": sample ", sample, " of ", data,
        " can't be read (", why, "): the next one is read in its place; it is ",
        count + 1, " of at most ", most, " (train.skip_bad_samples)"));
  }
  return absl::OkStatus();
}

}  // namespace capstan
