// SPDX-License-Identifier: Apache-2.0
#include "desk/init/recipe.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace capstan::init {
namespace {

constexpr int64_t kBytes = 256;  // the vocabulary

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

std::string PathIn(const std::string& path, const std::string& folder) {
  const std::string relative =
      std::filesystem::path(path).lexically_relative(folder).string();
  const bool far = relative.empty() || absl::StartsWith(relative, "../../");
  return Quoted(far ? path : relative);
}

std::string ModelText(const Recipe& r, const std::string& folder) {
  if (!r.model.empty()) {
    return absl::StrCat(
        "# Any decoder of Hugging Face's that docs/models.md lists.\n"
        "model { [plugin/capstan.decoder.Config] { pretrained: ",
        r.hub_model ? Quoted(r.model) : PathIn(r.model, folder), " } }\n");
  }
  if (r.kind == DataKind::kHistories) {
    return absl::StrCat(
        "model {\n  [plugin/capstan.ad_transformer.Config] {\n"
        "    embedding: 64\n    layers: 2\n    heads: 4\n    n_transit: ",
        r.transitions,
        "  # transitions that it sees at a time\n    dropout: 0.0",
        "\n    actions: ", r.actions,
        "  # of the environment, as the next line\n    observation: [",
        absl::StrJoin(r.observation, ", "), "]\n  }\n}\n");
  }
  const ScratchSize& size = r.size;
  return absl::StrCat(
      "# From random weights. A larger model learns more of more data, in more "
      "time.\nmodel {\n  [plugin/capstan.llama.Config] {\n    vocab_size: ",
      kBytes, "  # a token is a byte\n    hidden_size: ", size.hidden,
      "\n    intermediate_size: ", size.intermediate,
      "\n    num_hidden_layers: ", size.layers,
      "\n    num_attention_heads: ", size.heads,
      "\n    num_key_value_heads: ", size.kv_heads,
      "\n    max_position_embeddings: ", size.sequence, "\n  }\n}\n");
}

// A draft of a loss with a reference, which isn't there: another takes about
// the same memory and time.
bool LacksReference(const Recipe& r) { return !r.lora && r.reference.empty(); }

std::string ObjectiveText(const Recipe& r, const std::string& folder) {
  if (r.kind == DataKind::kHistories) {
    return "# Evaluations play episodes of the tasks that aren't trained on.\n"
           "objective {\n  [plugin/capstan.algorithm_distillation.Config] {\n"
           "    evaluation { episodes: 50 final_episodes: 100 }\n  }\n}\n";
  }
  const bool labels = r.kind == DataKind::kLabels;
  if (!IsPreference(r.kind) || (labels && LacksReference(r))) {
    return "objective { [plugin/capstan.causal_lm.Config] { temperature: 0.8 } "
           "}\n";
  }
  if (LacksReference(r)) {
    return "objective { [plugin/capstan.dpo.Config] { loss: SIMPO } }\n";
  }
  const std::string loss =
      absl::StrCat("objective { [plugin/capstan.dpo.Config] { loss: ",
                   labels ? "KTO" : "SIGMOID", " beta: 0.1");
  if (r.lora) {
    return absl::StrCat("# ", labels ? "KTO" : "DPO",
                        "; the reference is the model without its adapter.\n",
                        loss, " } }\n");
  }
  return absl::StrCat(
      "# ", labels ? "KTO" : "DPO",
      "; `trainer dpo-reference` writes the reference's file before the run.\n",
      loss, " reference: ", PathIn(r.reference, folder), " } }\n");
}

std::string DataText(const Recipe& r, const std::string& folder) {
  std::string text =
      absl::StrCat("train_data {\n  [plugin/capstan.",
                   r.kind == DataKind::kText        ? "text"
                   : r.kind == DataKind::kHistories ? "ad_history"
                                                    : "chat",
                   ".Config] {\n    path: ", PathIn(r.data, folder), "\n");
  if (r.kind == DataKind::kHistories) {
    return absl::StrCat(
        text, "    n_transit: ", r.transitions,
        "\n    short_contexts: true  # the beginnings of histories, too\n"
        "    shuffle: true\n  }\n}\n");
  }
  if (r.kind == DataKind::kText) {
    absl::StrAppend(&text, "    sequence_length: ",
                    r.model.empty() ? r.size.sequence : r.max_length,
                    r.model.empty() ? "  # bytes\n" : "  # tokens\n");
  } else {
    if (r.kind == DataKind::kPairs) {
      absl::StrAppend(&text, "    kind: PREFERENCE\n");
    } else if (r.kind == DataKind::kLabels && !LacksReference(r)) {
      absl::StrAppend(&text, "    kind: UNPAIRED\n");
    }
    if (r.format == ChatFormat::kChatMl) {
      absl::StrAppend(&text,
                      "    chat_template: \"chatml\"  # the model has none\n");
    }
    absl::StrAppend(&text, "    max_length: ", r.max_length,
                    "  # tokens; longer rows are cut\n");
    if (r.kind == DataKind::kRows && !r.plain_texts) {
      absl::StrAppend(&text, "    loss_on: ASSISTANT  # what others say isn't ",
                      "learned\n");
    }
    if (r.skip_bad) {
      absl::StrAppend(&text, "    bad_rows: SKIP  # what can't be read\n");
    }
    if (r.packed) {
      absl::StrAppend(&text,
                      "    packing: BEST_FIT  # several short rows a sample\n");
    }
  }
  absl::StrAppend(&text, "    shuffle: true\n");
  if (r.held_back > 0.0) {
    absl::StrAppend(&text, "    validation_fraction: ", r.held_back,
                    "  # held back, to measure what is learned\n");
  }
  return absl::StrCat(text, "  }\n}\n");
}

std::string OptimizerText(const Recipe& r) {
  std::string state;
  for (const std::string& set : r.fit.optimizer_sets) {
    absl::StrAppend(&state, " ", absl::StrReplaceAll(set, {{"=", ": "}}));
  }
  return absl::StrFormat(
      "optimizer { [plugin/capstan.adamw.Config] { learning_rate: %g%s } }\n",
      r.learning_rate, state);
}

std::string SampleText(const Recipe& r) {
  if (r.opening.empty() || r.kind == DataKind::kHistories) return "";
  const bool asks = r.kind != DataKind::kText && !r.plain_texts;
  return absl::StrCat("  # Answered at each evaluation.\n  sample_prompts { ",
                      asks ? "user: " : "prompt: ", Quoted(r.opening), " }\n");
}

struct Evaluations {
  int64_t every;    // steps
  int64_t batches;  // of each
};

// As many and as long as a tenth of the run's time allows: a batch of a
// forward pass alone takes a third of a training step's of its size.
Evaluations EvaluationsOf(const Recipe& r, int64_t steps) {
  const int64_t batches = 3 * steps * r.fit.global_batch /
                          std::max<int64_t>(1, 10 * r.fit.micro_batch);
  const auto count = std::min<int64_t>(10, std::max<int64_t>(2, batches / 20));
  return {(steps + count - 1) / count,
          std::min<int64_t>(50, std::max<int64_t>(1, batches / count))};
}

std::string TrainText(const Recipe& r) {
  std::string text = "train {\n";
  if (r.max_steps > 0) {
    absl::StrAppend(&text, "  max_steps: ", r.max_steps, "\n");
  } else {
    absl::StrAppend(&text, "  max_epochs: ", r.max_epochs, "\n");
  }
  const int64_t steps = r.all_steps > 0 ? r.all_steps : 1000;
  const auto every = [steps](int64_t parts) {
    return std::max<int64_t>(1, steps / parts);
  };
  absl::StrAppend(&text, "  log_every: ", every(50),
                  "\n  save_every: ", every(4), "\n");
  const bool histories = r.kind == DataKind::kHistories;
  if (histories) absl::StrAppend(&text, "  eval_every: ", every(6), "\n");
  if (r.held_back > 0.0) {
    const Evaluations evaluations = EvaluationsOf(r, steps);
    absl::StrAppend(&text, "  eval_every: ", evaluations.every,
                    "\n  eval_batches: ", evaluations.batches, "\n");
    absl::StrAppend(&text,
                    "  keep_best: true  # of all evaluations, for final/\n");
  }
  absl::StrAppend(&text, SampleText(r));
  const FitChoice& fit = r.fit;
  const std::string checkpointing = fit.Checkpointing();
  if (checkpointing != "NONE") {
    absl::StrAppend(&text, "  activation_checkpointing: ", checkpointing,
                    "  # memory for time\n");
  }
  if (fit.offload_activations || fit.paged_state) {
    absl::StrAppend(
        &text, "  offload {", fit.paged_state ? " optimizer_state: true" : "",
        fit.offload_activations ? " activations: true" : "", " }\n");
  }
  return absl::StrCat(text, "}\n");
}

}  // namespace

int64_t ScratchSize::Parameters() const {
  const int64_t head = hidden / heads;
  const int64_t attention = 2 * hidden * hidden + 2 * hidden * kv_heads * head;
  return layers * (attention + 3 * hidden * intermediate + 2 * hidden) +
         hidden + kBytes * hidden;
}

const std::vector<ScratchSize>& ScratchSizes() {
  // The first is run_distributed.pbtxt's; the last but one is near GPT-2's
  // small one. Larger models take smaller rates and larger batches (Brown et
  // al., 2020, "Language Models are Few-Shot Learners", table 2.1).
  static const auto* const sizes = new std::vector<ScratchSize>{
      {128, 344, 5, 4, 2, 128, 16, 3e-3},
      {256, 688, 6, 8, 4, 256, 16, 2e-3},
      {384, 1024, 8, 6, 2, 512, 32, 1e-3},
      {512, 1376, 12, 8, 4, 1024, 64, 8e-4},
      {768, 2048, 12, 12, 4, 1024, 256, 6e-4},
      {1024, 2752, 24, 16, 4, 1024, 512, 3e-4},
  };
  return *sizes;
}

std::string ConfigText(const Recipe& r, const std::string& folder,
                       const std::string& command) {
  const std::string fit = r.fit.ConfigText();
  std::string text = absl::StrCat(
      "# proto-file: host/config/run_config.proto\n"
      "# proto-message: capstan.RunConfig\n#\n# Made by `",
      command, "`. Each line may be changed; docs/config.md has more.\n\n",
      ModelText(r, folder));
  if (r.lora) {
    absl::StrAppend(
        &text, "# Only an adapter is trained; `trainer merge` adds it up.\n",
        "adapter { lora { rank: 16 alpha: 32",
        r.fit.quantize ? " quantize: NF4_DOUBLE" : "", " } }\n");
  }
  if (r.format == ChatFormat::kAddChatMl) {
    absl::StrAppend(&text,
                    "# The tokenizer has no chat template: it is given one.\n"
                    "chat_format: CHATML\n");
  }
  absl::StrAppend(
      &text, ObjectiveText(r, folder), DataText(r, folder),
      // Of FitChoice's lines.
      fit.substr(0, fit.find('\n') + 1),
      "precision { [plugin/capstan.auto.Config] {} }  # the narrowest that is "
      "fast here\n\n",
      OptimizerText(r), "batch { micro_batch_size: ", r.fit.micro_batch,
      " global_batch_size: ", r.fit.global_batch,
      " }  # per rank and forward; per step\n", TrainText(r));
  if (r.processes > 0) {
    absl::StrAppend(&text, "launch { processes: ", r.processes, " }\n");
  }
  return text;
}

}  // namespace capstan::init
