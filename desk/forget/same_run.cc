// SPDX-License-Identifier: Apache-2.0
#include "desk/forget/same_run.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/config_fields.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/run_record.h"
#include "trainer/session/run_identity.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

absl::Status CantBeTold(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "what the run would be without the rows can't be told: ", why));
}

absl::Status CheckIdentity(const RunSnapshot& snapshot,
                           const RunIdentity& identity,
                           const RunConfig& config) {
  RunIdentity then = snapshot.manifest.identity;
  RunIdentity now = identity;
  for (RunIdentity* one : {&then, &now}) {
    CAPSTAN_RETURN_IF_ERROR(AddDefaults(config, one));
  }
  const IdentityChanges changes = ChangesOf(
      then, now, snapshot.manifest.train_state.optimizer_steps, config.train());
  if (!changes.refused.empty()) {
    return CantBeTold(absl::StrCat(snapshot.path,
                                   " is of a run with other data or settings: ",
                                   absl::StrJoin(changes.refused, "; ")));
  }
  if (!changes.other_curve) return absl::OkStatus();
  return CantBeTold(absl::StrCat(
      snapshot.path, " has train.max_steps: ", then["train.max_steps"],
      ", this run ", now["train.max_steps"],
      ", and the schedule's curve depends on it"));
}

// Under a strategy with local steps each rank has a state of its own.
absl::Status CheckRanks(const RunSnapshot& snapshot, const Prepared& prepared) {
  const Strategy* const strategy = prepared.job.parts.strategy.get();
  const int then = snapshot.manifest.world_size;
  if (strategy == nullptr || !strategy->local_steps() ||
      then == prepared.processes) {
    return absl::OkStatus();
  }
  return CantBeTold(absl::StrCat(snapshot.path, " is of ", then,
                                 " ranks, this run has ", prepared.processes,
                                 ", and with local steps that matters"));
}

std::string MicroBatchOf(const RunSnapshot& snapshot) {
  const FieldLists fields = FieldsOfConfig(snapshot.manifest.config_text);
  const auto found = fields.find("batch.micro_batch_size");
  return found == fields.end() ? "unset" : found->second[0];
}

}  // namespace

absl::Status CheckHistory(const std::string& folder, bool evaluations_decide) {
  std::string change;
  ForEachLine(folder + "/events.jsonl", [&](absl::string_view line) {
    const std::string text = TextOf(ParseJson<Json>(line), "text");
    absl::string_view other = text;
    const bool another =
        absl::ConsumePrefix(&other, kGoesOnWithAnother) &&
        (evaluations_decide || !absl::StartsWith(other, "eval_"));
    if (another || absl::StrContains(text, kChangesSchedule)) change = text;
  });
  if (change.empty()) return absl::OkStatus();
  return CantBeTold(absl::StrCat(folder,
                                 " was changed while it went on "
                                 "(events.jsonl: \"",
                                 change, "\")"));
}

absl::Status CheckBatch(const std::vector<RunSnapshot>& snapshots,
                        const RunSnapshot* from, int64_t global_batch_size) {
  const TrainState begin =
      from == nullptr ? TrainState() : from->manifest.train_state;
  for (const RunSnapshot& snapshot : snapshots) {
    const TrainState& state = snapshot.manifest.train_state;
    if (state.step <= begin.step) continue;
    if (state.global_batch_size == global_batch_size &&
        state.samples - begin.samples ==
            (state.step - begin.step) * global_batch_size) {
      continue;
    }
    return CantBeTold(
        absl::StrCat("not all steps from ", begin.step + 1, " to ", state.step,
                     " had a batch.global_batch_size of ", global_batch_size,
                     " (", snapshot.path, "), as all would have that follow ",
                     from == nullptr ? "the beginning" : from->path));
  }
  return absl::OkStatus();
}

absl::Status CheckSameRun(const std::string& folder,
                          const std::vector<RunSnapshot>& snapshots,
                          const RunSnapshot* from, const Prepared& prepared,
                          int64_t end) {
  const RunConfig& config = prepared.job.loaded.config;
  CAPSTAN_ASSIGN_OR_RETURN(const IdentifiedRun mine,
                           IdentifyRun(config, prepared.job.parts, end));
  const int64_t first = from == nullptr ? -1 : from->manifest.train_state.step;
  const std::string micro_batch = MicroBatchOf(snapshots.back());
  for (const RunSnapshot& snapshot : snapshots) {
    CAPSTAN_RETURN_IF_ERROR(CheckIdentity(snapshot, mine.identity, config));
    const int64_t step = snapshot.manifest.train_state.step;
    if (step < first) continue;
    CAPSTAN_RETURN_IF_ERROR(CheckRanks(snapshot, prepared));
    // Else rounding is told of anyway.
    if (step == first || !config.train().deterministic()) continue;
    if (MicroBatchOf(snapshot) == micro_batch) continue;
    return CantBeTold(absl::StrCat(
        "to the bit, as train.deterministic asks: batch.micro_batch_size was ",
        MicroBatchOf(snapshot), " in ", snapshot.path, ", then ", micro_batch));
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckBatch(snapshots, from, prepared.job.batch.global_batch_size));
  return CheckHistory(folder, KeepsBest(config.train()));
}

}  // namespace capstan
