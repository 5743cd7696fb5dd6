// SPDX-License-Identifier: Apache-2.0
#include "desk/who/step_of_run.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/config_fields.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/rank_lines.h"
#include "desk/run_folder/run_record.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// The step's line in metrics.jsonl; the last one, if the run did the step
// again after a restart.
void ReadMetrics(const std::string& folder, StepRecord* record) {
  const std::string mark = absl::StrCat("\"step\": ", record->step, ",");
  ForEachLine(folder + "/metrics.jsonl", [&](absl::string_view line) {
    if (!absl::StrContains(line, mark)) return;
    const Json json = ParseJson<Json>(line);
    if (!json.is_object() || !json.contains("loss")) return;
    record->done = true;
    record->loss = NumberOf(json, "loss");
    record->grad_norm = NumberOf(json, "grad_norm");
  });
}

// The ranks of the process that did the step: the last that found fewer done.
// Each writes a line when it begins (docs/runs.md).
void ReadRanks(const std::string& folder, StepRecord* record) {
  ForEachLine(folder + "/ranks/rank-00000.jsonl", [&](absl::string_view line) {
    if (!absl::StrContains(line, "\"world_size\"")) return;
    const Json json = ParseJson<Json>(line);
    if (!IsRankFacts(json)) return;
    const RankFacts facts = RankFactsOf(json);
    if (facts.world_size == 0 || facts.first_step >= record->step) return;
    record->world_size = facts.world_size;
    record->begun_after = facts.first_step;
    record->micro_batch_size = facts.micro_batch_size;
  });
}

void ReadSummary(const std::string& folder, StepRecord* record) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/summary.json");
  if (!text.ok()) return;
  const Json json = ParseJson<Json>(*text);
  if (!json.is_object()) return;
  record->world_size =
      static_cast<int>(NumberOf(json, "world_size").value_or(0.0));
}

// The run's last step, as it was completed or, until then, as its config says;
// 0: unknown.
int64_t EndOf(const std::string& folder, const std::string& config_text) {
  int64_t end = 0;
  const FieldLists fields = FieldsOfConfig(config_text);
  const auto most = fields.find("train.max_steps");
  if (most != fields.end() && !absl::SimpleAtoi(most->second[0], &end)) end = 0;
  return IsInUse(folder) ? end : CompletedSteps(folder).value_or(end);
}

}  // namespace

std::vector<StepRow> RowsOfStep(const DataOrder& order, const BatchPlan& batch,
                                const Mesh& mesh, int64_t position) {
  SampleSequence sequence(order);
  std::vector<int64_t> samples(batch.global_batch_size);
  sequence.At(position, absl::MakeSpan(samples));
  const int64_t epoch_rows = order.size * order.rollouts.rows_per_sample *
                             order.rollouts.steps_per_sample;
  std::vector<StepRow> rows;
  for (int data_rank = 0; data_rank < mesh.data; ++data_rank) {
    for (int64_t i = 0; i < batch.accumulation; ++i) {
      const int64_t first = batch.Shares(mesh).FirstSample(data_rank, i);
      for (int64_t row = 0; first >= 0 && row < batch.micro_batch_size; ++row) {
        const int64_t at = first + row;
        rows.push_back({data_rank * mesh.sequence, i, row, position + at,
                        (position + at) / epoch_rows, samples[at]});
      }
    }
  }
  return rows;
}

std::string WeightsBefore(const StepRecord& record) {
  return record.checkpoint.empty()
             ? "those that the run began with"
             : absl::StrCat("those after step ", record.before.step);
}

std::string WeightsNote(const StepRecord& record) {
  const auto steps = [](int64_t count) {
    return absl::StrCat(count, count == 1 ? " step" : " steps");
  };
  const int64_t older = record.step - 1 - record.before.step;
  if (older == 0) return "";
  std::string note =
      absl::StrCat("the losses are by weights that are ", steps(older),
                   " older than the step's own (", WeightsBefore(record), ")");
  const int64_t newer =
      record.after.has_value() ? record.after->step - (record.step - 1) : older;
  if (newer >= older) return note + ", as no checkpoint is nearer";
  return absl::StrCat(note, "; those after step ", record.after->step, " are ",
                      steps(newer), " newer, but have learnt from it: --model=",
                      record.later_checkpoint, " takes them");
}

int64_t PositionOfStep(const StepRecord& record, int64_t global_batch_size,
                       std::vector<std::string>* notes) {
  const TrainState& before = record.before;
  const int64_t done = record.step - 1;
  if (!record.after.has_value()) {
    if (record.begun_after > before.step) {
      notes->push_back(absl::StrCat(
          "the run went on after step ", record.begun_after,
          ", and no checkpoint since then, or from then, says what it had read "
          "before: its batch is taken as ",
          global_batch_size, " since step ", before.step + 1));
    }
    return before.samples + (done - before.step) * global_batch_size;
  }
  const TrainState& after = *record.after;
  const int64_t steps = after.step - before.step;
  if (after.samples - before.samples != steps * global_batch_size) {
    notes->push_back(
        absl::StrCat("the run's batch changed between steps ", before.step,
                     " and ", after.step,
                     ", or rows were passed over, and no checkpoint says when: "
                     "the rows are right if it was before step ",
                     record.step));
  }
  return after.samples - (after.step - done) * global_batch_size;
}

absl::StatusOr<StepRecord> ReadStepRecord(const std::string& folder,
                                          int64_t step) {
  StepRecord record;
  record.step = step;
  record.config_from = folder + "/config.pbtxt";
  if (!PathExists(record.config_from)) {
    return absl::NotFoundError(
        absl::StrCat(folder,
                     " has no config.pbtxt: name a run's folder, "
                     "runs/NAME/TIME or runs/NAME/latest"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(record.config_text,
                           ReadWholeFile(record.config_from));
  ReadMetrics(folder, &record);
  const int64_t end = EndOf(folder, record.config_text);
  if (!record.loss.has_value() && end > 0 && step > end) {
    return absl::OutOfRangeError(
        absl::StrCat("--step: ", step, " is beyond the run's end, step ", end,
                     " (", folder, "): name one up to that"));
  }
  ReadSummary(folder, &record);
  // Newest first.
  for (const StoredCheckpoint& stored : WholeCheckpoints(folder)) {
    absl::StatusOr<Manifest> manifest = ReadManifest(stored.path);
    // As a resumed run does, goes by the others.
    if (!manifest.ok()) {
      std::cerr << "WARNING: " << PrintableText(stored.path)
                << " is passed over: it is damaged\n";
      continue;
    }
    if (stored.step < step) {
      record.checkpoint = stored.path;
      record.before = std::move(manifest->train_state);
      break;
    }
    record.world_size = manifest->world_size;
    record.global_batch_size = manifest->train_state.global_batch_size;
    record.later_checkpoint = stored.path;
    record.after = std::move(manifest->train_state);
    record.config_text = std::move(manifest->config_text);
    record.config_from = stored.path + "/manifest.json";
  }
  if (!record.checkpoint.empty() && record.global_batch_size == 0) {
    record.global_batch_size = record.before.global_batch_size;
  }
  ReadRanks(folder, &record);
  return record;
}

}  // namespace capstan
