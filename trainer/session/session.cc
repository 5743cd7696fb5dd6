// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/session.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "host/plugins/plugin_host.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/eval_tasks.h"
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
          named("train_data", config.train_data()),
          config.has_eval_data() ? named("eval_data", config.eval_data())
                                 : named("train_data", config.train_data())};
}

bool LowerIsBetter(const std::string& metric,
                   const evaluate::TaskSuite* tasks) {
  const absl::optional<bool> higher =
      tasks == nullptr ? absl::nullopt : HigherIsBetter(metric, *tasks);
  if (higher.has_value()) return !*higher;
  constexpr const char* kLower[] = {
      "loss",           "perplexity",  "perplexity_bound",
      "bits_per_byte",  "brier_score", "_kl",
      "nats_per_token", "_wer",        "_ter"};
  return std::any_of(
      std::begin(kLower), std::end(kLower),
      [&metric](const char* end) { return absl::EndsWith(metric, end); });
}

absl::Status NoSuchMetric(const std::string& metric,
                          const std::vector<std::string>& known) {
  return FieldError("best_metric", absl::StrCat("no evaluation measures ",
                                                metric, ": set it to one of ",
                                                absl::StrJoin(known, ", ")));
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
  checkpointed.plugins = {
      {kObjectiveKind, PackageOf(TypeOf(config.objective())), /*of_rank=*/true,
       [this] {
         const WhoseCode code(plugins.objective, "SaveState");
         return parts.objective->SaveState();
       },
       [this](std::string bytes, const std::string& file) {
         loaded_objective = {std::move(bytes), file};
       }},
      {kModelKind, PackageOf(TypeOf(config.model())), /*of_rank=*/false,
       [this] {
         const WhoseCode code(plugins.model, "SaveState");
         return parts.model->SaveState();
       },
       [this](std::string bytes, const std::string& file) {
         loaded_model = {std::move(bytes), file};
       }}};
  return checkpointed;
}

absl::Status Session::RestorePlugins() {
  const auto restore = [](const std::string& plugin, LoadedState* loaded,
                          auto* part) -> absl::Status {
    const LoadedState state = std::exchange(*loaded, {});
    if (state.bytes.empty()) return absl::OkStatus();
    const absl::Status restored = WhoseCode::Explain(CatchAll([&] {
      const WhoseCode code(plugin, "RestoreState");
      return Annotate(part->RestoreState(state.bytes),
                      absl::StrCat(plugin, ", RestoreState"));
    }));
    if (restored.ok()) return restored;
    return WithMessage(
        restored,
        absl::StrCat(state.file, ": ", restored.message(),
                     ": go on with the plugin and the config that have saved "
                     "it, or start anew in another output_dir"));
  };
  absl::Status status =
      restore(plugins.objective, &loaded_objective, parts.objective.get());
  status.Update(restore(plugins.model, &loaded_model, parts.model.get()));
  return Agree(*group, status, "restore its plugins' states");
}

void Session::BeforeChange() {
  background_save.BeforeChange();
  if (mirror != nullptr) mirror->BeforeChange();
}

void Session::RememberScale() {
  state.loss_scale = scaler.enabled() ? scaler.scale() : 0.0;
  state.loss_scale_good_steps = scaler.good_steps();
}

void Session::Note(const std::string& line, const char* kind) const {
  if (kind == nullptr) {
    kind = absl::StartsWith(line, "WARNING") ? kWarningEvent : kNoteEvent;
  }
  Tell({kind, state.step, line});
}

absl::Status Session::WithSharedModel(
    const std::function<absl::Status()>& forwards) {
  Strategy& strategy = *parts.strategy;
  if (!strategy.local_steps()) return forwards();
  const auto use = [&](bool shared) {
    return WhoseCode::Explain(CatchAll([&] {
      const WhoseCode code(plugins.strategy, "UseSharedModel");
      strategy.UseSharedModel(shared);
      return absl::OkStatus();
    }));
  };
  BeforeChange();
  CAPSTAN_RETURN_IF_ERROR(use(true));
  // In any case: a save may follow, which reads what use() exchanges.
  const absl::Status status = CatchAll(forwards);
  CAPSTAN_RETURN_IF_ERROR(use(false));
  return status;
}

absl::Status Session::Publish(PublishCause cause) {
  return CatchAll([&] {
    const WhoseCode code(plugins.strategy, "PublishParameters");
    const size_t shards = parts.strategy->OptimizerShards().size();
    for (size_t i = 0; i < shards; ++i) {
      parts.strategy->PublishShard(static_cast<int>(i));
    }
    parts.strategy->PublishParameters(cause);
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
  summary.measured = measured;
  summary.saving = saving_cost;
  if (state.best_step >= 0) {
    summary.best_metric = BestMetric(config.train());
    summary.best_value = state.best_eval_loss;
    summary.best_step = state.best_step;
  }
  return summary;
}

absl::Status ShareBadSamples(const std::string& data,
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
    auto count = static_cast<int64_t>(state.bad_samples.size() +
                                      state.bad_eval_samples.size());
    for (const EvaluatedData& other : session->evaluated) {
      count += static_cast<int64_t>(other.bad_samples.size());
    }
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
