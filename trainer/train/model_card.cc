// SPDX-License-Identifier: Apache-2.0
#include "trainer/train/model_card.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <torch/csrc/api/include/torch/version.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "plugins/sdk/status.h"
#include "trainer/config/load_config.h"
#include "trainer/metrics/curve.h"
#include "trainer/metrics/number_text.h"
#include "trainer/metrics/reporter.h"

namespace capstan {
namespace {

constexpr char kCurveFile[] = "loss_curve.svg";

// The last part of a path that doesn't end with '/'.
std::string LastName(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

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
    // Its place at a hub isn't known.
    absl::StrAppend(&front, "# Base model: ", LastName(facts.base_model), "\n");
  }
  return absl::StrCat(front, "---\n\n");
}

std::string Row(const std::string& name, const std::string& value) {
  return absl::StrCat("| ", name, " | ",
                      absl::StrReplaceAll(value, {{"|", "\\|"}}), " |\n");
}

std::string Numbers(const ModelCardFacts& facts) {
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
  add("steps", WithCommas(facts.steps));
  add(facts.unit + " seen", WithCommas(facts.tokens));
  if (facts.unit == kTokenUnit) {
    add("tokens trained on", WithCommas(facts.trained_tokens));
    add("padding beside them", absl::StrFormat("%.1f %%", 100 * facts.padding));
  }
  add("global batch", WithCommas(facts.global_batch_size));
  add("learning rate",
      absl::StrFormat("%g, %s", facts.learning_rate,
                      Schedule::Kind_Name(config.schedule().kind())));
  add("gradient clipping", config.train().max_grad_norm() > 0
                               ? absl::StrCat(config.train().max_grad_norm())
                               : "none");
  add("seed", absl::StrCat(config.train().seed()));
  add("strategy", absl::StrCat(facts.strategy, ", ", facts.world_size,
                               facts.world_size == 1 ? " rank" : " ranks"));
  add("precision", facts.precision);
  add("last training loss", absl::StrFormat("%.4f", facts.final_loss));
  if (facts.eval_loss.has_value()) {
    add("last evaluation loss", absl::StrFormat("%.4f", *facts.eval_loss));
  }
  if (facts.best_eval_loss.has_value() && facts.best_step.has_value()) {
    add("lowest evaluation loss",
        absl::StrFormat("%.4f, after step %d%s", *facts.best_eval_loss,
                        *facts.best_step,
                        config.train().keep_best() ? " (these weights)" : ""));
  }
  return table;
}

std::string Use(const ModelCardFacts& facts) {
  if (facts.adapter) {
    return "```python\nfrom peft import AutoPeftModelForCausalLM\n\n"
           "model = AutoPeftModelForCausalLM.from_pretrained(\"FOLDER\")\n"
           "```\n\n`trainer merge` makes a whole model of it.\n";
  }
  if (!facts.texts) {
    return "`model { [plugin/..] { pretrained: \"FOLDER\" } }` in a config of "
           "Capstan goes on from it.\n";
  }
  if (!facts.causal) {
    return "```\ntrainer generate --model=FOLDER --prompt=\"..\"\n```\n";
  }
  return "```python\nfrom transformers import AutoModelForCausalLM, "
         "AutoTokenizer\n\n"
         "model = AutoModelForCausalLM.from_pretrained(\"FOLDER\")\n"
         "tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n```\n";
}

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelCard(
    const ModelCardFacts& facts) {
  CAPSTAN_ASSIGN_OR_RETURN(const LossCurves curves,
                           ReadLossCurves(facts.metrics_path));
  const std::string svg = LossCurveSvg(curves);
  std::string card =
      absl::StrCat(Front(facts), "# ", facts.config->name(), "\n\n");
  const std::string base =
      facts.base_model.empty()
          ? ""
          : absl::StrCat("`", LastName(facts.base_model), "`");
  if (facts.adapter) {
    absl::StrAppend(&card, "A LoRA adapter",
                    base.empty() ? "" : absl::StrCat(" for ", base));
  } else {
    absl::StrAppend(&card, facts.texts ? "A language model, " : "A model, ",
                    base.empty() ? "trained from scratch"
                                 : absl::StrCat("fine-tuned from ", base));
  }
  absl::StrAppend(&card, " with Capstan.\n\n## Training\n\n", Numbers(facts),
                  "\n");
  if (!svg.empty()) {
    absl::StrAppend(&card, "![Loss by step](", kCurveFile, ")\n\n");
  }
  absl::StrAppend(&card, "All settings, data included:\n\n```\n",
                  facts.config_text, "```\n\n## Use\n\n", Use(facts),
                  "\n## Versions\n\nCapstan with LibTorch ", TORCH_VERSION,
                  ".\n");
  std::vector<std::pair<std::string, std::string>> files = {
      {"README.md", std::move(card)}};
  if (!svg.empty()) files.emplace_back(kCurveFile, svg);
  return files;
}

std::string BaseModelOf(const RunConfig& config) {
  const std::string& url = config.model().type_url();
  const google::protobuf::Descriptor* type =
      google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
          url.substr(url.rfind('/') + 1));
  const google::protobuf::FieldDescriptor* field =
      type == nullptr ? nullptr : type->FindFieldByName("pretrained");
  if (field == nullptr || field->is_repeated() ||
      field->type() != google::protobuf::FieldDescriptor::TYPE_STRING) {
    return "";
  }
  const std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(type)
          ->New());
  if (!message->ParseFromString(config.model().value())) return "";
  return message->GetReflection()->GetString(*message, field);
}

}  // namespace capstan
