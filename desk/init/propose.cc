// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/init/init.h"
#include "host/config/hub_path.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/metrics/console.h"

namespace capstan::init {
namespace {

// How long a trial may take, in seconds.
constexpr double kTrialSeconds = 20.0;
// What isn't steps: evaluations, checkpoints.
constexpr double kShareOfSteps = 0.85;
// A model of N parameters is worth 20 N tokens (Hoffmann et al., 2022,
// "Training Compute-Optimal Large Language Models", table 3), of 6 N operations
// each.
constexpr double kTokensPerParameter = 20.0;
// Repeated more often, even a small text has little left to teach.
constexpr double kMostEpochs = 20.0;
// Assumed of a GPU that can't be tried, in operations per second.
constexpr double kGpuSpeed = 1e14;
constexpr int64_t kLeastText = 4096;  // bytes
constexpr int64_t kLeastRows = 40;    // of which some can be held back
constexpr int64_t kMostLength = 4096;

std::string KindText(const DataLook& look) {
  switch (look.kind) {
    case DataKind::kText:
      return look.files.size() > 1 ? absl::StrCat(look.files.size(), " texts")
                                   : "a text";
    case DataKind::kPairs:
      return "pairs of answers";
    case DataKind::kLabels:
      return "answers with labels";
    case DataKind::kHistories:
      return "learning histories";
    default:
      return look.row_kind.empty() ? "rows"
             : look.plain_texts    ? "texts in rows"
                                   : "conversations";
  }
}

void TellData(Init* init) {
  const DataLook& look = init->look;
  std::string text = absl::StrCat(Typed(look.path), ": ", KindText(look), ", ",
                                  ShortBytes(look.bytes));
  if (!look.row_kind.empty()) {
    absl::StrAppend(&text, "; rows are ", look.row_kind);
  }
  if (!look.roles.empty()) {
    absl::StrAppend(&text, "; roles ", absl::StrJoin(look.roles, ", "));
  }
  if (look.left_out > 0) {
    absl::StrAppend(&text, "; ", WithCommas(look.left_out),
                    look.left_out == 1 ? " file isn't" : " files aren't",
                    " UTF-8 text or rows, and left out");
  }
  init->Tell("data", PrintableText(text));
  if (look.label.empty()) return;
  init->Tell("labels",
             absl::StrCat("texts have a label, ", PrintableText(look.label),
                          ", that isn't learned, as Capstan trains no "
                          "classifier: the model learns to write the texts; to "
                          "write labels, call the columns prompt and "
                          "completion, with a text for each label"));
}

// Samples of a step for the target's ranks: a multiple of their number.
int64_t GlobalBatch(int64_t samples, const Target& target) {
  const int64_t ranks = target.ranks();
  return (samples + ranks - 1) / ranks * ranks;
}

// How the model's tokenizer writes conversations.
absl::Status ChooseFormat(Init* init) {
  Recipe& recipe = init->recipe;
  if (recipe.plain_texts) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(init->model));
  if (!tokenizer->chat_template().empty()) {
    init->Tell("template", "the tokenizer's own");
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const auto chatml, ChatTemplate::Named("chatml"));
  const bool known = chatml->Check(*tokenizer).ok();
  recipe.format = known ? ChatFormat::kChatMl : ChatFormat::kAddChatMl;
  init->Tell("template",
             known ? "ChatML, as the tokenizer has none"
                   : "ChatML, whose tokens are added, as the tokenizer has no "
                     "template");
  return absl::OkStatus();
}

// Lengths, packing and what is held back, by what the reader says.
absl::Status ChooseLengths(Trial* trial, int64_t positions, Init* init) {
  Recipe& recipe = init->recipe;
  recipe.max_length = std::min(kMostLength, positions);
  absl::StatusOr<DataFacts> facts = trial->Read(recipe);
  if (!facts.ok()) {
    const absl::Status why = WithMessage(
        facts.status(),
        absl::StrCat(facts.status().message(), "; `trainer data ",
                     Typed(init->look.path), " --model=", init->options.model,
                     "` checks each row"));
    recipe.skip_bad = true;
    facts = trial->Read(recipe);
    if (!facts.ok()) return why;  // it isn't only some rows
    CAPSTAN_RETURN_IF_ERROR(AskAboutBadRows(why, facts->samples, init));
  }
  // Of pairs both texts are counted, of labels also the mismatched one.
  const int64_t texts = IsPreference(recipe.kind) ? 2 : 1;
  const int64_t wanted = (facts->almost_all / texts / 64 + 1) * 64;
  recipe.max_length = std::min(wanted * texts, recipe.max_length);
  recipe.held_back = facts->samples >= kLeastRows ? 0.05 : 0.0;
  recipe.packed = recipe.kind == DataKind::kRows &&
                  facts->median * 4 < recipe.max_length &&
                  facts->samples >= 8 * kLeastRows;
  init->Tell("rows",
             absl::StrCat(WithCommas(facts->samples), " of ",
                          WithCommas(facts->median), " tokens (median) to ",
                          WithCommas(facts->longest), "; cut at ",
                          WithCommas(recipe.max_length),
                          recipe.packed ? ", several packed together" : ""));
  return absl::OkStatus();
}

// Positions that the model at `folder` has, as its config.json says.
int64_t PositionsOf(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/config.json");
  if (!text.ok()) return kMostLength;
  const absl::StatusOr<nlohmann::ordered_json> json =
      ParseObject(folder + "/config.json", *text);
  if (!json.ok()) return kMostLength;
  JsonKeys keys("config.json", *json);
  return std::max<int64_t>(16,
                           keys.Int("max_position_embeddings", kMostLength));
}

// A text and a model, or rows.
absl::Status FineTune(Trial* trial, Init* init) {
  Recipe& recipe = init->recipe;
  recipe.hub_model = IsHubPath(init->options.model);
  recipe.model = recipe.hub_model ? init->options.model : init->model;
  const int64_t positions = PositionsOf(init->model);
  if (recipe.kind == DataKind::kText) {
    recipe.max_length = std::min<int64_t>({1024, positions});
    recipe.held_back = 0.05;
  } else {
    recipe.lora = true;  // of its drafts labels are read, too
    CAPSTAN_RETURN_IF_ERROR(ChooseFormat(init));
    CAPSTAN_RETURN_IF_ERROR(ChooseLengths(trial, positions, init));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const DataFacts facts, trial->Read(recipe));
  const bool preference = IsPreference(recipe.kind);
  const std::string& prefer = init->options.prefer;
  // Preferences need no file of references then.
  recipe.lora = prefer == "memory" || (prefer.empty() && preference);
  const bool memory_first = recipe.lora;
  recipe.fit.global_batch =
      GlobalBatch(std::min<int64_t>(16, facts.samples), init->target);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string fits,
                           trial->Fit(/*may_adapt=*/true, &recipe));
  // Those of a config that leaves the rate out.
  recipe.learning_rate = preference    ? (recipe.lora ? 1e-5 : 1e-6)
                         : recipe.lora ? 2e-4
                         : recipe.kind == DataKind::kText ? 5e-5
                                                          : 2e-5;
  init->Tell("model", absl::StrCat(init->options.model, ", ",
                                   recipe.lora ? "a LoRA adapter of rank 16"
                                               : "all weights",
                                   recipe.fit.quantize ? " on 4-bit ones" : "",
                                   memory_first  ? ", as memory comes first"
                                   : recipe.lora ? ", as memory is short"
                                                 : ", as they fit"));
  init->Tell("memory", fits);
  recipe.max_steps = 0;
  recipe.max_epochs = preference ? 1.0 : 3.0;
  recipe.all_steps = static_cast<int64_t>(
      std::ceil(recipe.max_epochs * static_cast<double>(facts.samples) /
                static_cast<double>(recipe.fit.global_batch)));
  return absl::OkStatus();
}

absl::Status Histories(Trial* trial, Init* init) {
  Recipe& recipe = init->recipe;
  // As in ad_darkroom_quickstart.pbtxt; the published settings are 80.
  recipe.transitions = 32;
  recipe.learning_rate = 2e-3;
  recipe.fit.global_batch = GlobalBatch(64, init->target);
  CAPSTAN_RETURN_IF_ERROR(trial->FillEnvironment(&recipe));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string fits,
                           trial->Fit(/*may_adapt=*/false, &recipe));
  init->Tell("model",
             absl::StrCat("a new transformer that sees ", recipe.transitions,
                          " transitions: Algorithm Distillation"));
  init->Tell("memory", fits);
  recipe.max_steps = recipe.all_steps = 50000;
  return absl::OkStatus();
}

// Operations that a token costs in training.
double Operations(const ScratchSize& size) {
  return 6.0 * static_cast<double>(size.Parameters());
}

double TokensOfStep(const Recipe& recipe) {
  return static_cast<double>(recipe.size.sequence * recipe.fit.global_batch);
}

// The largest of ScratchSizes() that `seconds` at `speed` operations a second
// and a text of `bytes` are worth; an index.
size_t WorthwhileSize(double speed, double seconds, double bytes) {
  const std::vector<ScratchSize>& sizes = ScratchSizes();
  size_t chosen = 0;
  for (size_t i = 1; i < sizes.size(); ++i) {
    const double tokens =
        std::min(speed * seconds / Operations(sizes[i]), kMostEpochs * bytes);
    if (tokens >=
        kTokensPerParameter * static_cast<double>(sizes[i].Parameters())) {
      chosen = i;
    }
  }
  return chosen;
}

// Makes the recipe one of a new model of `size`; returns Trial::Fit's line.
absl::StatusOr<std::string> TakeSize(const ScratchSize& size, Trial* trial,
                                     Init* init) {
  Recipe& recipe = init->recipe;
  recipe.size = size;
  // Even a short text is many sequences.
  recipe.size.sequence =
      std::min(size.sequence, init->look.bytes / 64 / 16 * 16);
  recipe.learning_rate = size.learning_rate;
  recipe.fit.global_batch = GlobalBatch(size.global_batch, init->target);
  return trial->Fit(/*may_adapt=*/false, &recipe);
}

absl::Status FromScratch(Trial* trial, Init* init) {
  Recipe& recipe = init->recipe;
  if (init->look.bytes < kLeastText) {
    return absl::InvalidArgumentError(absl::StrCat(
        Typed(init->look.path), " has ", init->look.bytes,
        " bytes of text: a model needs ", kLeastText,
        " at least, and learns to write from a hundred times that"));
  }
  const double bytes = static_cast<double>(init->look.bytes);
  recipe.held_back = 0.05;
  const std::vector<ScratchSize>& sizes = ScratchSizes();
  CAPSTAN_ASSIGN_OR_RETURN(std::string fits, TakeSize(sizes[0], trial, init));
  const absl::optional<double> step = trial->MeasureStep(recipe, kTrialSeconds);
  const double speed =
      step.has_value() ? Operations(recipe.size) * TokensOfStep(recipe) / *step
                       : kGpuSpeed * init->target.ranks();
  for (size_t i = WorthwhileSize(speed, init->seconds, bytes); i > 0; --i) {
    absl::StatusOr<std::string> larger = TakeSize(sizes[i], trial, init);
    if (!larger.ok() && i > 1) continue;  // memory is short
    CAPSTAN_ASSIGN_OR_RETURN(
        fits, larger.ok() ? larger : TakeSize(sizes[0], trial, init));
    break;
  }
  init->Tell(
      "model",
      absl::StrCat("a new Llama of ",
                   ShortCount(static_cast<double>(recipe.size.Parameters())),
                   " parameters, what time and text are worth"));
  init->Tell("tokens", absl::StrCat("bytes, ", recipe.size.sequence,
                                    " at a time: no vocabulary to make"));
  init->Tell("memory", fits);
  double steps = kMostEpochs * bytes / TokensOfStep(recipe);
  if (!step.has_value()) {
    steps = std::min(steps, init->seconds * speed / Operations(recipe.size) /
                                TokensOfStep(recipe));
  }
  recipe.max_steps = recipe.all_steps =
      std::max<int64_t>(1, static_cast<int64_t>(steps));
  return absl::OkStatus();
}

// Shortens the run to the time that it may take, as a trial says.
void ChooseLength(Trial* trial, Init* init) {
  Recipe& recipe = init->recipe;
  const bool unready = IsPreference(recipe.kind) && !recipe.lora;
  const absl::optional<double> step = trial->MeasureStep(recipe, kTrialSeconds);
  const std::string wanted = ClockTime(init->seconds);
  if (!step.has_value()) {
    init->Tell("time",
               absl::StrCat(WithCommas(recipe.all_steps), " steps, ",
                            init->target.here()
                                ? "whose time couldn't be measured in 20 s"
                                : "as a GPU's speed is a guess from here",
                            ": see the first steps' ETA, and set train.max_",
                            recipe.max_steps > 0 ? "steps" : "epochs", " for ",
                            wanted));
    return;
  }
  const auto possible = std::max<int64_t>(
      1, static_cast<int64_t>(kShareOfSteps * init->seconds / *step));
  const double epochs = recipe.max_epochs * static_cast<double>(possible) /
                        static_cast<double>(recipe.all_steps);
  std::string why;
  if (possible < recipe.all_steps) {
    recipe.max_steps = recipe.all_steps = possible;
    why = absl::StrCat("what fits into ", wanted);
    if (recipe.max_epochs > 0.0) {
      absl::StrAppend(&why, absl::StrFormat(", %.2g of %g passes", epochs,
                                            recipe.max_epochs));
    }
  } else {
    why = recipe.max_epochs > 0.0
              ? absl::StrFormat("%g passes over the data", recipe.max_epochs)
              : "all that is worth it";
  }
  init->Tell("time", absl::StrCat(
                         "about ",
                         ClockTime(*step / kShareOfSteps *
                                   static_cast<double>(recipe.all_steps)),
                         ": ", WithCommas(recipe.all_steps), " steps of ",
                         ShortDuration(*step), ", measured",
                         unready ? " (without the reference)" : "", "; ", why));
}

}  // namespace

absl::Status MakeRecipe(Init* init) {
  Trial trial(init->target);
  Recipe& recipe = init->recipe;
  recipe.kind = init->look.kind;
  recipe.data = init->joining.empty() ? init->look.path : init->joining;
  recipe.plain_texts = init->look.plain_texts;
  recipe.opening = init->look.opening;
  // Until they are chosen.
  recipe.fit.strategy = "capstan.fsdp";
  recipe.learning_rate = 1e-4;
  recipe.max_steps = 1;
  recipe.processes = init->target.here() ? 0 : init->target.processes;
  TellData(init);
  CAPSTAN_RETURN_IF_ERROR(recipe.kind == DataKind::kHistories
                              ? Histories(&trial, init)
                          : init->model.empty() ? FromScratch(&trial, init)
                                                : FineTune(&trial, init));
  ChooseLength(&trial, init);
  init->Tell(
      "strategy",
      absl::StrCat(recipe.fit.strategy, ", ", recipe.fit.global_batch,
                   " samples a step, ", recipe.fit.micro_batch,
                   " at a time on each of ", init->target.ranks(), " ranks"));
  if (recipe.held_back > 0.0) {
    init->Tell("held back", "5 % of the data, to measure what is learned");
  }
  return absl::OkStatus();
}

}  // namespace capstan::init
