// SPDX-License-Identifier: Apache-2.0
//
// who: the rows that a run's step was computed from, what each adds to the
// loss, and which tokens do.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "desk/generate/model_flags.h"
#include "desk/run_folder/run_record.h"
#include "desk/who/measure_rows.h"
#include "desk/who/row_text.h"
#include "desk/who/step_of_run.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/generator.h"
#include "plugins/sdk/objective.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/plugin_state.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/check_run.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/new_tokens.h"
#include "trainer/session/run_folders.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/set_up.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

struct WhoOptions {
  std::string run;
  int64_t step = 0;
  std::string model;
  bool gradients = false;
  int64_t top = 0;  // 0: all rows
  bool json = false;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
};

// All that is known before anything is computed.
struct Asked {
  std::string folder;
  StepRecord record;
  LoadedConfig loaded;
  std::unique_ptr<PluginHost> host;
  RunParts parts;
  std::unique_ptr<ForgivingReader> forgiving;  // null: none is used
  int world_size = 1;
  BatchPlan batch;
  std::vector<StepRow> rows;
  std::string weights;  // the folder they are from; "": those of the beginning
  // Whose weights they are, for users, and whether they are those that the step
  // was computed with.
  std::string whose;
  bool exact = false;
  std::vector<std::string> notes;
};

// Has the run's model be the one that --model names.
absl::Status TakeModel(const std::string& model, const ConfigContext& context,
                       Asked* asked) {
  RunConfig& config = asked->loaded.config;
  CAPSTAN_ASSIGN_OR_RETURN(const EvaluationSource source,
                           FindToEvaluate(model, AdapterOptions(), &config,
                                          context, RunFoldersHere()));
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig other,
                           ParseConfig(source.config, source.folder, context));
  *config.mutable_model() = other.config.model();
  config.clear_adapter();
  if (other.config.has_adapter()) {
    *config.mutable_adapter() = other.config.adapter();
  }
  asked->weights = source.folder;
  asked->whose = source.folder;
  return absl::OkStatus();
}

// The weights from before the step that are nearest to it.
void TakeCheckpoint(Asked* asked) {
  const StepRecord& record = asked->record;
  asked->weights = record.checkpoint;
  asked->whose = WeightsBefore(record);
  const std::string note = WeightsNote(record);
  asked->exact = note.empty();
  if (!note.empty()) asked->notes.push_back(note);
}

// How the run's ranks shared the step.
absl::Status PlanStep(Asked* asked) {
  const StepRecord& record = asked->record;
  RunConfig& config = asked->loaded.config;
  asked->world_size = record.world_size;
  if (asked->world_size == 0) {
    asked->world_size = config.launch().processes();
    if (config.launch().processes() == Launch::AUTO) {
      CAPSTAN_ASSIGN_OR_RETURN(const CommandHost::Ranks here, RanksOfRun());
      asked->world_size = here.count;
      asked->notes.push_back(absl::StrCat(
          "the folder doesn't say how many ranks the run had: taken as ",
          here.count, " (--set launch.processes=N)"));
    }
  }
  const int64_t micro_batch = config.batch().micro_batch_size();
  if (record.global_batch_size > 0 && config.batch().global_batch_size() == 0) {
    config.mutable_batch()->set_global_batch_size(record.global_batch_size);
  }
  const Mesh mesh = MeshOf(config.train(), asked->world_size);
  const absl::StatusOr<BatchPlan> plan = PlanBatch(config.batch(), mesh);
  CAPSTAN_RETURN_IF_ERROR(asked->loaded.Locate(plan.status(), "batch"));
  asked->batch = *plan;
  const Strategy* const strategy = asked->parts.strategy.get();
  asked->batch.replicas_apart = strategy != nullptr && strategy->local_steps();
  if (micro_batch != Batching::AUTO) return absl::OkStatus();
  const int64_t chosen = record.micro_batch_size;
  if (chosen > 0 && asked->batch.global_batch_size % chosen == 0) {
    asked->batch = WithMicroBatch(asked->batch, chosen, mesh.data);
  } else {
    asked->notes.push_back(
        "batch.micro_batch_size is AUTO, and the folder doesn't say what was "
        "chosen: taken as 1. The rows are the step's, but maybe another rank's "
        "(--set batch.micro_batch_size=N)");
  }
  return absl::OkStatus();
}

// Those of train.forgotten_rows, which the step didn't read.
absl::Status LeaveOutForgotten(Asked* asked) {
  const std::set<int64_t> forgotten =
      ForgottenRows(asked->loaded.config.train());
  std::vector<StepRow> left;
  for (const StepRow& row : asked->rows) {
    if (forgotten.count(row.sample) == 0) {
      left.push_back(row);
      continue;
    }
    asked->notes.push_back(absl::StrCat("sample ", row.sample,
                                        " had weight zero in this step "
                                        "(train.forgotten_rows)"));
  }
  asked->rows = std::move(left);
  if (!asked->rows.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("step ", asked->record.step,
                   " had no row that isn't one of train.forgotten_rows"));
}

absl::Status FindRows(Asked* asked) {
  const StepRecord& record = asked->record;
  const TrainState& known =
      record.after.has_value() ? *record.after : record.before;
  const RunConfig& config = asked->loaded.config;
  const DatasetReader& data = *asked->parts.train_data;
  // Without a checkpoint it isn't known.
  if (known.data_size > 0 && known.data_size != data.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "train_data has ", data.size(), " samples, and had ", known.data_size,
        " in the run (", asked->folder,
        "): its files have changed since, so that the rows of a step can't be "
        "told; put back what they were"));
  }
  const int64_t global = asked->batch.global_batch_size;
  const Mesh mesh = MeshOf(config.train(), asked->world_size);
  const std::string idle = IdleRanksNote(asked->batch, mesh);
  if (!idle.empty()) asked->notes.push_back(idle);
  const int64_t position = PositionOfStep(record, global, &asked->notes);
  const DataOrder order = OrderOfRun(config, asked->parts, global);
  asked->rows = RowsOfStep(order, asked->batch, mesh, position);
  return LeaveOutForgotten(asked);
}

absl::StatusOr<Asked> Prepare(const WhoOptions& options, int gpus) {
  Asked asked;
  CAPSTAN_ASSIGN_OR_RETURN(asked.folder, FindRun(options.run));
  CAPSTAN_ASSIGN_OR_RETURN(asked.record,
                           ReadStepRecord(asked.folder, options.step));
  asked.host = std::make_unique<PluginHost>(AllFromCaller(options.plugin_path));
  const ConfigContext context = DefaultConfigContext(asked.host.get());
  const StepRecord& record = asked.record;
  CAPSTAN_ASSIGN_OR_RETURN(
      asked.loaded, ParseConfig(record.config_text, record.config_from, context,
                                options.overrides));
  // Not read here.
  RunConfig& config = asked.loaded.config;
  config.clear_eval_data();
  config.clear_eval_sets();
  config.clear_eval_tasks();
  TakeCheckpoint(&asked);
  if (!options.model.empty()) {
    asked.notes.clear();
    asked.exact = false;
    CAPSTAN_RETURN_IF_ERROR(TakeModel(options.model, context, &asked));
  }
  CAPSTAN_RETURN_IF_ERROR(
      SettleNewTokens(&asked.loaded, *asked.host, record.checkpoint));
  CAPSTAN_ASSIGN_OR_RETURN(asked.parts,
                           CreateRunParts(asked.loaded, gpus, *asked.host,
                                          /*here=*/true, record.checkpoint));
  CAPSTAN_RETURN_IF_ERROR(PlanStep(&asked));
  CAPSTAN_RETURN_IF_ERROR(FindRows(&asked));
  // Objectives note what they need of model and data.
  CAPSTAN_RETURN_IF_ERROR(asked.loaded.Locate(
      asked.parts.objective->Check(*asked.parts.model, *asked.parts.train_data),
      "objective"));
  if (const int64_t most = config.train().skip_bad_samples(); most > 0) {
    asked.forgiving =
        std::make_unique<ForgivingReader>(asked.parts.train_data.get(), most);
  }
  return asked;
}

// Answers that an earlier step has sampled are in the checkpoint.
absl::Status RestoreRollouts(Asked* asked) {
  Objective& objective = *asked->parts.objective;
  if (!asked->exact || asked->weights.empty() || !objective.has_rollouts() ||
      objective.rollout_plan().steps_per_sample == 1) {
    return absl::OkStatus();
  }
  PluginState plugin;
  plugin.kind = kObjectiveKind;
  plugin.plugin = PackageOf(TypeOf(asked->loaded.config.objective()));
  plugin.of_rank = true;
  // Each rank has those of all.
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string state,
      CheckpointPluginState(asked->weights, plugin, /*rank=*/0));
  return state.empty() ? absl::OkStatus() : objective.RestoreState(state);
}

absl::StatusOr<MeasuredStep> Measure(const WhoOptions& options, int gpus,
                                     Asked* asked) {
  const Train& train = asked->loaded.config.train();
  if (train.deterministic()) ComputeDeterministically();
  at::set_num_threads(AvailableCores());
  MeasureRequest request;
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                           CreateProcessGroup(RankInfo(), gpus > 0 ? 1 : 0));
  request.device = group->device();
  request.parts = &asked->parts;
  request.data = asked->forgiving != nullptr ? asked->forgiving.get()
                                             : asked->parts.train_data.get();
  const auto bind = [&](const std::string& weights) {
    return BindForTraining(weights, train.seed(), asked->parts.policy().compute,
                           request.device, asked->parts.model.get());
  };
  CAPSTAN_ASSIGN_OR_RETURN(request.trained, bind(asked->weights));
  CAPSTAN_RETURN_IF_ERROR(RestoreRollouts(asked));
  request.with_initial_weights =
      [&](const std::function<absl::Status()>& forwards) -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(bind("").status());
    CAPSTAN_RETURN_IF_ERROR(forwards());
    CAPSTAN_ASSIGN_OR_RETURN(request.trained, bind(asked->weights));
    return absl::OkStatus();
  };
  request.step = asked->record.step;
  request.rows = asked->rows;
  request.micro_batch_size = asked->batch.micro_batch_size;
  request.seed = train.seed();
  request.gradients = options.gradients;
  WorkBar bar("computing", STDERR_FILENO);
  request.progress = [&bar](double done) { bar.Show(done, "rows"); };
  return MeasureRows(request);
}

// Ordered by what they add to the loss, if --top asks for that.
std::vector<const MeasuredRow*> Shown(const WhoOptions& options,
                                      const MeasuredStep& step) {
  std::vector<const MeasuredRow*> rows;
  for (const MeasuredRow& row : step.rows) rows.push_back(&row);
  if (options.top == 0) return rows;
  std::stable_sort(
      rows.begin(), rows.end(), [](const MeasuredRow* a, const MeasuredRow* b) {
        return a->loss_sum.value_or(0.0) > b->loss_sum.value_or(0.0);
      });
  rows.resize(std::min<size_t>(rows.size(), options.top));
  return rows;
}

double MeanOf(const MeasuredRow& row) {
  return row.targets > 0 ? *row.loss_sum / static_cast<double>(row.targets)
                         : 0.0;
}

bool IsCausal(const Asked& asked) {
  const TokenModel* const model = asked.parts.model->token_model();
  return model == nullptr || model->causal();
}

Json OrNull(const absl::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json NumbersJson(const NamedNumbers& numbers) {
  Json json = Json::object();
  for (const auto& [name, value] : numbers) json[name] = value;
  return json;
}

Json RowJson(const Asked& asked, const MeasuredRow& row) {
  const StepRow& place = row.place;
  Json json = {{"rank", place.rank},
               {"micro_batch", place.micro_batch},
               {"row", place.row},
               {"position", place.position},
               {"epoch", place.epoch},
               {"sample", place.sample},
               {"loss", nullptr},
               {"loss_sum", OrNull(row.loss_sum)},
               {"targets", row.targets},
               {"tokens", row.tokens},
               {"trained_tokens", row.trained}};
  if (row.loss_sum.has_value()) json["loss"] = MeanOf(row);
  if (row.gradient_norm.has_value()) {
    json["gradient_norm"] = *row.gradient_norm;
  }
  json["made"] = NumbersJson(row.made);
  json["metrics"] = NumbersJson(row.metrics);
  json["texts"] = Json::array();
  for (const MeasuredText& text :
       TextsOf(row, asked.parts.train_data->tokenizer(), IsCausal(asked))) {
    Json tokens = Json::array();
    for (const RowToken& token : text.tokens) {
      tokens.push_back({{"id", token.id},
                        {"text", token.bytes},
                        {"loss", OrNull(token.loss)}});
    }
    json["texts"].push_back({{"name", text.name},
                             {"text", text.Text()},
                             {"tokens", std::move(tokens)}});
  }
  if (json["texts"].empty()) json["tensors"] = TensorLines(row.batch);
  return json;
}

std::string StepJson(const WhoOptions& options, const Asked& asked,
                     const MeasuredStep& step) {
  Json json = {{"run", asked.folder},
               {"step", asked.record.step},
               {"weights", asked.weights},
               {"weights_are_the_steps", asked.exact},
               {"loss", step.loss},
               {"recorded_loss", OrNull(asked.record.loss)},
               {"recorded_grad_norm", OrNull(asked.record.grad_norm)},
               {"targets", step.targets},
               {"world_size", asked.world_size},
               {"micro_batch_size", asked.batch.micro_batch_size},
               {"accumulation", asked.batch.accumulation},
               {"global_batch_size", asked.batch.global_batch_size},
               {"notes", asked.notes},
               {"rows", Json::array()}};
  for (const MeasuredRow* row : Shown(options, step)) {
    json["rows"].push_back(RowJson(asked, *row));
  }
  return JsonText(json, 1) + "\n";
}

std::string RowHead(const MeasuredStep& step, const MeasuredRow& row) {
  const StepRow& place = row.place;
  std::string head =
      absl::StrFormat("rank %d, micro-batch %d, row %d: sample %d", place.rank,
                      place.micro_batch, place.row, place.sample);
  if (place.epoch > 0) absl::StrAppend(&head, " of epoch ", place.epoch);
  if (!row.loss_sum.has_value()) return head;
  absl::StrAppendFormat(&head, "  loss %.4f", MeanOf(row));
  // Those of answers with advantages have either sign.
  if (row.made.empty()) {
    absl::StrAppendFormat(&head, " (%.1f %% of the step's)",
                          100.0 * *row.loss_sum /
                              (step.loss * static_cast<double>(step.targets)));
  }
  absl::StrAppendFormat(&head, "  %s of %s tokens trained",
                        WithCommas(row.trained), WithCommas(row.tokens));
  if (row.gradient_norm.has_value()) {
    absl::StrAppendFormat(&head, "  gradient norm %.4g", *row.gradient_norm);
  }
  return head;
}

// "4.2442, metrics.jsonl has 4.2442 (2.1e-08 apart)"
std::string LossText(const Asked& asked, const MeasuredStep& step) {
  std::string text = absl::StrFormat("%.4f", step.loss);
  const absl::optional<double>& recorded = asked.record.loss;
  if (!recorded.has_value()) {
    return absl::StrCat(text, asked.record.done
                                  ? "; the run's wasn't finite"
                                  : "; the run hasn't done this step");
  }
  absl::StrAppendFormat(&text, ", metrics.jsonl has %.4f", *recorded);
  if (asked.exact) {
    absl::StrAppendFormat(&text, " (%.0e apart)",
                          std::fabs(step.loss - *recorded) /
                              std::max(std::fabs(*recorded), 1e-30));
  }
  return text;
}

void Print(const WhoOptions& options, const Asked& asked,
           const MeasuredStep& step) {
  const BatchPlan& batch = asked.batch;
  std::string head = TableText(
      {{"run", asked.folder},
       {"step", absl::StrCat(asked.record.step)},
       {"rows",
        absl::StrCat(
            batch.global_batch_size, " = micro ", batch.micro_batch_size, " x ",
            RanksText(
                asked.world_size,
                MeshOf(asked.loaded.config.train(), asked.world_size).sequence),
            " x accumulation ", batch.accumulation)},
       {"weights", asked.whose},
       {"loss", LossText(asked, step)}});
  for (const std::string& note : asked.notes) {
    absl::StrAppend(&head, "  note: ", note, "\n");
  }
  std::string text = PrintableText(head);
  const Console console(STDOUT_FILENO);
  if (console.terminal()) absl::StrAppend(&text, "  ", ColourLegend(), "\n");
  console.Write(text);
  for (const MeasuredRow* row : Shown(options, step)) {
    text = absl::StrCat("\n", RowHead(step, *row), "\n");
    // What the objective has sampled, and made of it.
    if (!row->made.empty()) {
      for (const NamedNumbers* numbers : {&row->made, &row->metrics}) {
        for (const auto& [name, value] : *numbers) {
          absl::StrAppendFormat(&text, "  %s %.4g", PrintableText(name), value);
        }
      }
      text += "\n";
    }
    const std::vector<MeasuredText> texts =
        TextsOf(*row, asked.parts.train_data->tokenizer(), IsCausal(asked));
    for (const MeasuredText& one : texts) {
      if (!one.name.empty()) absl::StrAppend(&text, one.name, ":\n");
      absl::StrAppend(
          &text,
          console.terminal() ? ColouredText(one) : PrintableText(one.Text()),
          "\n");
    }
    if (texts.empty()) {
      for (const std::string& line : TensorLines(row->batch)) {
        absl::StrAppend(&text, "  ", PrintableText(line), "\n");
      }
    }
    console.Write(text);
  }
}

void AddFlags(Flags& flags, WhoOptions* options) {
  flags.Add("run", &options->run, "A run's folder (runs/NAME/latest)")
      .Type("RUN");
  flags.Add("--step", &options->step, "Which step, from 1")
      .Positive()
      .Required();
  flags
      .Add("--model", &options->model,
           "Whose losses to show; default: those of the run's newest "
           "checkpoint from before the step")
      .Type("FOLDER");
  flags.Add("--gradients", &options->gradients,
            "Also the norm of what each row adds to the gradient");
  flags
      .Add("--top", &options->top,
           "Only so many rows, those that add most to the loss; default: all, "
           "by rank and micro-batch")
      .Positive();
  flags.Add("--json", &options->json, "Print JSON (docs/who.md)");
  AddSet(flags, &options->overrides,
         "Changes the run's config: train_data.path=/moved/rows.jsonl");
  AddPluginPath(flags, &options->plugin_path);
}

absl::StatusOr<int> Who(const WhoOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const int gpus, GpusOfRun());
  CAPSTAN_ASSIGN_OR_RETURN(Asked asked, Prepare(options, gpus));
  CAPSTAN_ASSIGN_OR_RETURN(const MeasuredStep step,
                           Measure(options, gpus, &asked));
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  if (options.json) {
    std::cout << StepJson(options, asked, step) << std::flush;
  } else {
    Print(options, asked, step);
  }
  return 0;
}

const RegisterFunction<WhoOptions> who("who", AddFlags, Who);

}  // namespace
}  // namespace capstan
