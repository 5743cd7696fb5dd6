// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/model_card.h"

#include <torch/csrc/api/include/torch/version.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/curve.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

constexpr char kCurveFile[] = "loss_curve.svg";

std::string Front(const ModelCardFacts& facts) {
  std::string front = "---\n";
  if (facts.causal || facts.adapter) {
    absl::StrAppend(&front,
                    "library_name: ", facts.adapter ? "peft" : "transformers",
                    "\n");
  }
  if (facts.texts) absl::StrAppend(&front, "pipeline_tag: text-generation\n");
  absl::StrAppend(&front, "tags:\n- capstan\n");
  if (facts.adapter) absl::StrAppend(&front, "- lora\n");
  if (!facts.base_model.empty()) {
    absl::StrAppend(&front, BaseModelMetadata(facts.base_model));
  }
  return absl::StrCat(front, "---\n\n");
}

std::string Row(const std::string& name, const std::string& value) {
  return absl::StrCat("| ", name, " | ",
                      absl::StrReplaceAll(value, {{"|", "\\|"}}), " |\n");
}

std::string Numbers(const ModelCardFacts& facts, const LossCurves& curves) {
  const RunConfig& config = *facts.config;
  std::string table = "| | |\n|---|---|\n";
  const auto add = [&table](const std::string& name, const std::string& value) {
    absl::StrAppend(&table, Row(name, value));
  };
  add("parameters trained", WithCommas(facts.trained_parameters));
  if (facts.frozen_parameters > 0) {
    add("parameters frozen", WithCommas(facts.frozen_parameters));
  }
  add("training samples", WithCommas(facts.training_samples));
  add("steps", WithCommas(facts.run.steps));
  add(facts.run.unit + " seen", WithCommas(facts.run.tokens));
  if (facts.run.unit == kTokenUnit) {
    add("tokens trained on", WithCommas(facts.run.trained_tokens));
    add("padding beside them",
        absl::StrFormat("%.1f %%", 100 * facts.run.padding));
  }
  add("global batch", WithCommas(facts.global_batch_size));
  add("learning rate",
      absl::StrFormat("%g, %s", facts.learning_rate,
                      Schedule::Kind_Name(config.schedule().kind())));
  add("gradient clipping", config.train().max_grad_norm() > 0
                               ? absl::StrCat(config.train().max_grad_norm())
                               : "none");
  add("seed", absl::StrCat(config.train().seed()));
  add("strategy", absl::StrCat(facts.run.strategy, ", ", facts.run.world_size,
                               facts.run.world_size == 1 ? " rank" : " ranks"));
  add("precision", facts.run.precision);
  add("last training loss",
      absl::StrFormat("%.4f", facts.run.final_loss.value_or(0.0)));
  const absl::optional<double> loss = MetricIn(facts.run.measured, kEvalLoss);
  if (loss.has_value()) add("last eval_loss", absl::StrFormat("%.4f", *loss));
  if (facts.run.best_value.has_value() && facts.run.best_step.has_value()) {
    add(absl::StrCat("best ", facts.run.best_metric),
        absl::StrFormat("%.4f, after step %d%s", *facts.run.best_value,
                        *facts.run.best_step,
                        KeepsBest(config.train()) ? " (these weights)" : ""));
  }
  for (const auto& [name, value] : curves.measured) {
    add(absl::StrCat("last ", name), absl::StrFormat("%.4f", value));
  }
  if (!facts.receipts.empty()) {
    add("receipts' chain", absl::StrCat("`", facts.receipts, "`"));
  }
  return table;
}

// Where a user of this folder finds the base: on the hub, or next to it.
std::string BasePlace(const ModelCardFacts& facts) {
  return facts.base_model.empty() ? "../BASE" : PublicPlace(facts.base_model);
}

// Python that creates `model`, and `tokenizer` if any.
std::string Python(const ModelCardFacts& facts) {
  const bool own_code = !facts.auto_class.empty();
  const std::string model_class =
      own_code ? facts.auto_class : "AutoModelForCausalLM";
  std::string code = "```python\n";
  if (facts.adapter) absl::StrAppend(&code, "from peft import PeftModel\n");
  absl::StrAppend(&code, "from transformers import ", model_class,
                  facts.tokenizer ? ", AutoTokenizer" : "", "\n\n",
                  facts.adapter ? "base" : "model", " = ", model_class,
                  ".from_pretrained(\"", facts.adapter ? BasePlace(facts) : ".",
                  "\"", own_code ? ", trust_remote_code=True" : "", ")\n");
  if (facts.rows > 0) {
    absl::StrAppend(&code, "base.resize_token_embeddings(", facts.rows, ")\n");
  }
  if (facts.adapter) {
    absl::StrAppend(&code, "model = PeftModel.from_pretrained(base, \".\")\n");
  }
  if (facts.tokenizer) {
    absl::StrAppend(&code,
                    "tokenizer = AutoTokenizer.from_pretrained(\".\")\n");
  }
  return code + "```\n";
}

std::string Use(const ModelCardFacts& facts) {
  if (!facts.texts && facts.base_model_field.empty()) {
    return "Its model can't be started from a folder.\n";
  }
  if (!facts.texts) {
    return absl::StrCat(
        "A config of Capstan in this folder goes on from it with\n\n```\nmodel "
        "{ [plugin/",
        TypeOf(facts.config->model()), "] { ", facts.base_model_field,
        ": \".\" } }\n```\n");
  }
  std::string use = "In this folder";
  if (facts.adapter && HubName(facts.base_model).empty()) {
    absl::StrAppend(&use, ", with the base model's in ", BasePlace(facts));
  }
  absl::StrAppend(&use, ":\n\n");
  if (facts.causal || !facts.auto_class.empty()) {
    absl::StrAppend(&use, Python(facts), "\n");
  }
  absl::StrAppend(&use, "With Capstan's `trainer`:\n\n```\n");
  if (!facts.adapter) {
    absl::StrAppend(&use, "trainer generate --model=. --prompt=\"Once\"\n");
    return use + "```\n";
  }
  const std::string hub = HubName(facts.base_model);
  const std::string base = "../" + hub.substr(hub.rfind('/') + 1);
  if (!hub.empty()) {
    absl::StrAppend(&use, "hf download ", hub, " --local-dir ", base, "\n");
  }
  const std::string place = hub.empty() ? BasePlace(facts) : base;
  absl::StrAppend(&use, "trainer generate --model=", place,
                  " --adapter=. --prompt=\"Once\"\n",
                  "trainer merge --model=", place,
                  " --adapter=. --output=../merged\n");
  return use + "```\n";
}

absl::Status AddPicture(
    const ModelCardFacts& facts, const std::string& name, std::string* card,
    std::vector<std::pair<std::string, std::string>>* files) {
  const std::string file = name + ".svg";
  CAPSTAN_ASSIGN_OR_RETURN(std::string svg, ReadWholeFile(absl::StrCat(
                                                facts.output_dir, "/", file)));
  absl::StrAppend(card, "![", name, " in evaluations](", file, ")\n\n");
  files->emplace_back(file, std::move(svg));
  return absl::OkStatus();
}

}  // namespace

RunConfig PortableConfig(const RunConfig& config) {
  RunConfig portable = config;
  portable.clear_output_dir();
  ChangePaths([](const std::string&,
                 const std::string& path) { return ModelName(path); },
              &portable)
      .IgnoreError();
  return portable;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelCard(
    const ModelCardFacts& facts) {
  CAPSTAN_ASSIGN_OR_RETURN(const LossCurves curves,
                           ReadLossCurves(facts.output_dir + "/metrics.jsonl"));
  const std::string svg = LossCurveSvg(curves);
  std::string card =
      absl::StrCat(Front(facts), "# ", facts.config->name(), "\n\n");
  const std::string base =
      facts.base_model.empty()
          ? ""
          : absl::StrCat("`", ModelName(facts.base_model), "`");
  if (facts.adapter) {
    absl::StrAppend(&card, "A LoRA adapter",
                    base.empty() ? "" : absl::StrCat(" for ", base));
  } else {
    absl::StrAppend(&card, facts.texts ? "A language model, " : "A model, ",
                    base.empty() ? "trained from scratch"
                                 : absl::StrCat("fine-tuned from ", base));
  }
  absl::StrAppend(&card, " with Capstan.\n\n## Training\n\n",
                  Numbers(facts, curves), "\n");
  std::vector<std::pair<std::string, std::string>> files;
  if (!svg.empty()) {
    absl::StrAppend(&card, "![Loss by step](", kCurveFile, ")\n\n");
    files.emplace_back(kCurveFile, svg);
  }
  for (const std::string& name : facts.pictures) {
    CAPSTAN_RETURN_IF_ERROR(AddPicture(facts, name, &card, &files));
  }
  absl::StrAppend(&card, "All settings, data included:\n\n```\n",
                  PrintConfig(PortableConfig(*facts.config)),
                  "```\n\n## Use\n\n", Use(facts),
                  "\n## Versions\n\nCapstan with LibTorch ", TORCH_VERSION,
                  ".\n");
  files.emplace_back("README.md", std::move(card));
  return files;
}

}  // namespace capstan
