// SPDX-License-Identifier: Apache-2.0
//
// Small files of each kind: what their settings become, and that broken ones
// are errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "desk/import/import_testing.h"

namespace capstan::import {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

TEST_F(ImportTest, Accelerate) {
  const Draft draft =
      Of("a.yaml",
         "compute_environment: local_machine\ndistributed_type: multi_gpu\n"
         "mixed_precision: BF16\nnum_machines: 2\nnum_processes: 8\n"
         "main_process_ip: 10.0.0.1\nmain_process_port: 1234\ngpu_ids: 0,1\n"
         "num_procesess: 4\n");
  Expect(draft, R"(strategy: capstan.ddp; precision: capstan.bf16;
      launch.processes: 4; launch.rendezvous: "10.0.0.1:1234";
      launch.gpu_ids: [0, 1]; no model)");
  EXPECT_THAT(draft.table(),
              Contains(AllOf(Field(&TableLine::key, "num_procesess"),
                             Field(&TableLine::note,
                                   HasSubstr("did you mean num_processes?")))));
  EXPECT_EQ(Of("b.yaml", "distributed_type: multi_gpu\nmixed_precision: fp8\n")
                .Text("precision"),
            "capstan.fp8");
  EXPECT_EQ(
      Of("c.yml", "base_model: o/m\nbf16: true\nfp8: true\n").Text("precision"),
      "capstan.fp8");
}

TEST_F(ImportTest, DeepSpeedByItsAccelerateFileAndTrlsArguments) {
  Write("ds.json",
        R"({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": true},
            "gradient_clipping": "auto", "zero_optimization": {"stage": 2,
            "reduce_bucket_size": 2e8, "overlap_comm": false,
            "offload_optimizer": {"device": "cpu", "pin_memory": false}}})");
  const std::string accelerate =
      Write("a.yaml",
            "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n"
            "  deepspeed_config_file: ds.json\n");
  const std::string run = Write(
      "run.sh",
      "#!/bin/bash\nMODEL=./base  # theirs\n"
      "accelerate launch --num_processes 4 \\\n  train/sft.py \\\n"
      "  --model_name_or_path ${MODEL} --dataset_name me/chats --packing \\\n"
      "  --per_device_train_batch_size=2 --gradient_accumulation_steps 3 \\\n"
      "  --use_peft --lora_target_modules q_proj o_proj --max_length 512\n");
  // With TRL's defaults where they differ from ours.
  Expect(Make({accelerate, run}), R"(model.pretrained: "./base";
      train_data.path: "hf:me/chats"; train_data.packing: BEST_FIT;
      train_data.max_length: 512; strategy: capstan.zero2;
      strategy.reduce_bucket_size: 200000000; strategy.overlap_comm: false;
      strategy.offload_optimizer.device: CPU; batch.micro_batch_size: 2;
      batch.global_batch_size: 24; adapter.lora.rank: 16;
      adapter.lora.target_modules: ["q_proj", "o_proj"];
      optimizer.learning_rate: 2e-5; optimizer.weight_decay: 0;
      schedule.kind: LINEAR; train.max_grad_norm: 1.0;
      train.activation_checkpointing: EVERY_UNIT; whole)");
}

TEST_F(ImportTest, Documents) {
  const std::string axolotl = "base_model: o/m\n";
  Expect(Of("x.yml", axolotl + "seed: 1\nseed: 2\n? [a]\n: 3\n"
                               "sequence_len: -512\n---\n"),
         "train.seed: 2; lost (a key that is no text); lost sequence_len");
  EXPECT_THAT(Error(Write("two.yml", axolotl + "---\nseed: 3\n")),
              HasSubstr("two.yml:3: is a second document"));
  Write("b1.yaml", "seed: 7\nmodel: {name: o/m}\n");
  Write("b2.yaml", "seed: 8\nmodel: {name: o/m}\n");
  Expect(Of("p.yaml", "include: [b1.yaml, b2.yaml]\ntuning: {mode: lora}\n"),
         "train.seed: 8");
}

TEST_F(ImportTest, LossOnWhat) {
  const std::string llama = "model_name_or_path: o/m\nstage: sft\n";
  Expect(Of("l.yaml", llama + "train_on_prompt: false\nmask_history: true\n"),
         "train_data.loss_on: COMPLETION");
  Expect(Of("l.yaml", llama + "train_on_prompt: false\nmask_history: false\n"),
         "train_data.loss_on: ASSISTANT");
  Expect(Of("b.yaml", llama + "train_on_prompt: true\nmask_history: true\n"),
         "differs mask_history");
  const std::string trl =
      "trl sft --model_name_or_path o/m --completion_only_loss False ";
  Expect(Of("t.sh", trl + "--assistant_only_loss True"),
         "train_data.loss_on: ASSISTANT");
  Expect(Of("t.sh", trl), "train_data.loss_on: ALL");
  const std::string tune =
      "model:\n  _component_: a.llama3_8b\ncheckpointer:\n"
      "  checkpoint_dir: /m\noptimizer:\n  _component_: torch.optim.AdamW\n"
      "dataset:\n  source: o/d\n"
      "  _component_: torchtune.datasets.chat_dataset\n";
  Expect(Of("t.yaml", tune),
         "train_data.loss_on: ASSISTANT; differs dataset.train_on_input");
  Expect(Of("t.yaml", tune + "  train_on_input: True\n"),
         "train_data.loss_on: ALL; not differs dataset.train_on_input");
  // Long texts are split there, long chats dropped.
  Expect(Of("x.yml",
            "base_model: o/m\nsample_packing: true\ndatasets:\n"
            "  - path: o/a\n    type: completion\n"
            "  - path: o/b\n    type: chat_template\n"),
         "train_data.loss_on: ASSISTANT; train_data.source#0.loss_on: ALL; "
         "no train_data.source#1.loss_on; differs sequence_len; "
         "differs excess_length_strategy");
}

// What a peer does by default depends on its other settings.
TEST_F(ImportTest, DefaultsOfOthers) {
  Expect(Make({Write("x.yml",
                     "base_model: o/m\nbatch_size: 16\nmicro_batch_size: 2\n"
                     "sample_packing: true\nwarmup_steps: 0\ndatasets:\n"
                     "  - path: o/a\n    type: completion\n"),
               Write("a.yaml",
                     "distributed_type: MULTI_GPU\nnum_processes: 4\n")}),
         "batch.global_batch_size: 64; no schedule.warmup_ratio; "
         "train_data.packing: BEST_FIT_SPLIT; train_data.loss_on: ALL");
  Expect(Of("u.sh",
            "trl sft --model_name_or_path o/m --max_length None "
            "--eval_steps 10"),
         "no train_data.max_length; differs rows' length; "
         "not default max_length; unused eval_steps");
  Expect(Of("c.sh",
            "python run_clm.py --model_name_or_path o/m --train_file rows.json "
            "--output_dir x --validation_file v.json"),
         R"(train_data.packing: WRAPPED; train_data.max_length: 1024;
            eval_data.path: "v.json"; eval_data.packing: WRAPPED;
            eval_data.max_length: 1024; no eval_data.shuffle)");
  const Draft ipo =
      Of("i.sh", "python dpo.py --model_name_or_path o/m --loss_type ipo");
  Expect(ipo, "optimizer.learning_rate: 1e-6");
  EXPECT_THAT(TableText(ipo, 80), Not(HasSubstr("2e-5")));
  Expect(Of("t.yaml",
            "checkpointer:\n  checkpoint_dir: /m\nmodel:\n  _component_: a.b\n"
            "optimizer:\n  _component_: torch.optim.SGD\n  lr: 0.1\n"),
         "no optimizer.weight_decay");
}

// Else a row would be marked as mapped that is dropped.
TEST_F(ImportTest, FactsAreRead) {
  std::string sources;
  for (const auto& file : std::filesystem::directory_iterator(
           absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/desk/import"))) {
    if (absl::EndsWith(file.path().string(), "_test.cc")) continue;
    bool in_table = false;
    for (const absl::string_view line :
         absl::StrSplit(*ReadWholeFile(file.path().string()), '\n')) {
      in_table |= absl::EndsWith(line, "[] = R\"(");
      if (!in_table)
        absl::StrAppend(&sources, absl::StripAsciiWhitespace(line));
      in_table &= line != ")\";";
    }
  }
  absl::StrReplaceAll({{"Set(\"@", ""}, {"NoteUnused(\"@", ""}}, &sources);
  for (const Peer* const peer : Peers()) {
    for (const Table& table : peer->tables) {
      for (const Row& row : RowsOf(table)) {
        if (row.field[0] != '@' || row.field == "@*" ||
            absl::StrContains(row.field, '[')) {
          continue;
        }
        EXPECT_THAT(sources, AnyOf(HasSubstr(row.field + "\""),
                                   HasSubstr(row.field + " ")))
            << row.keys;
      }
    }
  }
}

// A file beside the settings is found, and a file isn't the hub's.
TEST_F(ImportTest, LocalPaths) {
  Write("data/train.json", "[]");
  for (const char* const file : {"data/train.json", "data/gone.json"}) {
    Expect(Of("s.yaml", absl::StrCat("model_name_or_path: o/m\noutput_dir: x\n"
                                     "train_file: ",
                                     file, "\n")),
           absl::StrCat("train_data.path: \"", file, "\""));
  }
}

TEST_F(ImportTest, TrlsPreferences) {
  Expect(Of("dpo.sh",
            "trl dpo --model_name_or_path m/m --dataset_name me/pairs "
            "--use_peft --warmup_steps 7 --max_steps 30\n"),
         "objective: capstan.dpo; objective.loss: SIGMOID; "
         "optimizer.learning_rate: 1e-6; adapter.lora.dropout: 0; "
         "train_data.kind: PREFERENCE; schedule.warmup_steps: 7; "
         "train.max_steps: 30; no train.max_epochs");
  EXPECT_THAT(Error(Write("g.sh", "trl rloo --model_name_or_path m/m\n")),
              HasSubstr("\"rloo\" can't be trained here"));
}

// Files of programs that train with others of theirs.
TEST_F(ImportTest, WhatTrainsNothingIsRefused) {
  EXPECT_THAT(Error(Write("eval.yaml",
                          "model:\n  _component_: torchtune.models.q.q\n"
                          "checkpointer:\n  _component_: c.H\n"
                          "  checkpoint_dir: /m\ndtype: bf16\n")),
              HasSubstr("a recipe without an optimizer"));
  EXPECT_THAT(Error(Write("merge.yaml",
                          "model_name_or_path: o/m\ntemplate: qwen\n"
                          "export_dir: out\n")),
              HasSubstr("a file that exports or predicts"));
}

// The table says what the config has.
TEST_F(ImportTest, AFieldThatGivesWayHasNoLine) {
  const Draft draft = Of("run.sh",
                         "python run_clm.py --model_name_or_path o/m "
                         "--dataset_name o/d --num_train_epochs 1 "
                         "--max_steps 200\n");
  for (const TableLine& line : draft.table()) {
    EXPECT_THAT(line.ours, ::testing::Not(HasSubstr("train.max_epochs")));
  }
}

TEST_F(ImportTest, Axolotl) {
  const Draft draft =
      Of("x.yml",
         "base_model: o/m\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\n"
         "lora_alpha: 16\nlora_target_linear: true\nsequence_len: 2048\n"
         "sample_packing: true\nmicro_batch_size: 2\nnum_epochs: 4\n"
         "gradient_accumulation_steps: 4\noptimizer: adamw_bnb_8bit\n"
         "learning_rate: 0.0002\nval_set_size: 0.05\nwandb_project:\n"
         "datasets:\n  - path: o/d\n    type: chat_template\n"
         "    split: train[:10%]\nneftune_noise_alpha: 5\nquux: 1\n"
         "load_in_8bit: false\n");
  Expect(draft, R"(adapter.lora.quantize: NF4_DOUBLE;
      adapter.lora.target_modules: ["all-linear"];
      train_data.loss_on: ASSISTANT; optimizer.state: EIGHT_BIT;
      batch.global_batch_size: 8; schedule.kind: COSINE;
      schedule.warmup_ratio: 0.03; train.seed: 42; objective.noise_alpha: 5)");
  EXPECT_THAT(Keys(draft, Effect::kLost),
              UnorderedElementsAre("datasets[0].split", "quux"));
  EXPECT_TRUE(draft.loses());
}

// axolotl's warm-up is rounded down, is 100 steps at most by default, and
// never 1.
TEST_F(ImportTest, AxolotlsWarmup) {
  for (const auto& [settings, steps] :
       {std::pair<const char*, const char*>{"10000", "100"},
        {"40", "2"},
        {"30", ""},
        {"10000\nwarmup_ratio: 0.03", "300"},
        {"9\nwarmup_steps: 1", "2"}}) {
    Expect(Of("w.yml",
              absl::StrCat("base_model: o/m\nmax_steps: ", settings, "\n")),
           absl::StrCat("no schedule.warmup_ratio; schedule.warmup_steps: ",
                        steps));
  }
}

TEST_F(ImportTest, LlamaFactory) {
  Write("data/dataset_info.json",
        R"({"mine": {"file_name": "mine.json", "formatting": "sharegpt",
            "columns": {"messages": "conversations", "tools": "tools"}}})");
  Write("data/mine.json", "[]");
  const Draft draft =
      Of("l.yaml",
         "model_name_or_path: o/m\nstage: sft\nlora_rank: 4\ndataset: mine\n"
         "template: qwen3_nothink\nper_device_train_batch_size: 1\n"
         "lr_scheduler_type: constant\nwarmup_ratio: 0.1\nbf16: true\n");
  // transformers' "constant" has no warm-up.
  Expect(draft, R"(adapter.lora.alpha: 8; train_data.path: "data/mine.json";
      train_data.kind: SHAREGPT; train_data.chat_template: "chatml";
      train_data.max_length: 2048; no schedule.warmup_ratio;
      differs template)");
  EXPECT_THAT(Keys(draft, Effect::kLost), IsEmpty());
  const std::string named =
      "model_name_or_path: o/m\ndataset: mine\ntemplate: ";
  Expect(Of("l.yaml", named + "llama3\n"),
         "not differs template; differs cutoff_len");
  // Pairs' losses are sums over whole answers.
  Expect(Of("l.yaml", named + "chatml\nstage: dpo\n"),
         "not differs template; lost dataset: mine");
  // Its defaults are others.
  EXPECT_THAT(Error(Write("v1.yaml", "model: o/m\ncutoff_len: 8\n")),
              HasSubstr("a file of LLaMA-Factory's v1"));
}

TEST_F(ImportTest, Torchtune) {
  Expect(Of("t.yaml",
            "output_dir: /tmp/o\nmodel:\n  _component_: a.lora_llama3_8b\n"
            "  lora_attn_modules: [q_proj, output_proj]\n"
            "  apply_lora_to_mlp: True\n  lora_rank: 8\n  lora_alpha: 16\n"
            "checkpointer:\n  _component_: c.H\n  checkpoint_dir: /m\n"
            "  output_dir: ${output_dir}\ndataset:\n"
            "  _component_: torchtune.datasets.chat_dataset\n  source: o/d\n"
            "  train_on_input: True\ntokenizer:\n  max_seq_len: 512\n"
            "optimizer:\n  _component_: torch.optim.AdamW\n  lr: 3e-4\n"
            "batch_size: 2\ndtype: fp32\nmax_steps_per_epoch: 5\n"),
         R"(model.pretrained: "/m"; adapter.lora.target_modules:
            ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
            optimizer.weight_decay: 0.01; train.max_steps: 5;
            train.max_grad_norm: 0; whole)");
}

TEST_F(ImportTest, SftPlaysInclude) {
  Write("base.yaml",
        "seed: 7\nmodel:\n  name: o/m\n  max_seq_len: 512\ntrain:\n"
        "  epochs: 3\n  batch_size: auto\n  grad_accum: auto\n"
        "  lr_scheduler_type: cosine\n");
  Expect(Of("run.yaml",
            "include: base.yaml\ntuning:\n  mode: qlora\ntrain:\n  epochs: 1\n"
            "  target_tokens_per_device_step: 2048\ndata:\n"
            "  train_path: d.jsonl\n"),
         "train.max_epochs: 1; train.seed: 7; batch.micro_batch_size: 4; "
         "schedule.kind: LINEAR; adapter.lora.rank: 32");
}

TEST_F(ImportTest, PeftFolder) {
  Write("adapter/adapter_config.json",
        R"({"peft_type": "LORA", "base_model_name_or_path": "o/m", "r": 8,
            "target_modules": ["q_proj"], "use_dora": true,
            "lora_dropout": 0.25})");
  const std::string folder = folder_.path() + "/adapter";
  const Draft draft = Make({folder});
  Expect(draft, R"(adapter.lora.pretrained: "adapter";
      model.pretrained: "hf:o/m"; not lost use_dora)");
  // "r" isn't the field that came of "lora_dropout".
  EXPECT_THAT(TableText(draft, 80),
              HasSubstr("ok      r                            8\n"));
  // The folder's dropout, not TRL's nor axolotl's default; their model.
  const char* const both = R"(model.pretrained: "hf:p/q";
      adapter.lora.pretrained: "adapter"; adapter.lora.dropout: 0.25)";
  Expect(Make({folder, Write("more.yaml",
                             "model_name_or_path: p/q\nuse_peft: true\n")}),
         both);
  Expect(Of("more.yaml",
            "base_model: p/q\nadapter: lora\nlora_model_dir: adapter\n"),
         both);
}

// What a peer's file leaves out is as it is there, not as it is by our
// defaults.
TEST_F(ImportTest, ConfigsAreWhole) {
  Write("rows.jsonl", "{}\n");
  const char* const files[] = {
      // torchtune's rate is constant without a schedule.
      "model:\n  _component_: a.llama3_8b\ncheckpointer:\n"
      "  _component_: c.H\n  checkpoint_dir: ./m\ndataset:\n"
      "  _component_: torchtune.datasets.chat_dataset\n  source: json\n"
      "  data_files: rows.jsonl\noptimizer:\n"
      "  _component_: torch.optim.AdamW\n  lr: 3e-4\nbatch_size: 2\n",
      "base_model: ./m\nlearning_rate: 1e-4\ndatasets:\n"
      "  - path: rows.jsonl\n    type: chat_template\n",
      "model_name_or_path: ./m\nstage: sft\nfinetuning_type: full\n",
      "model_name_or_path: ./m\nmax_length: 64\ndataset_name: rows.jsonl\n",
      "model_name_or_path: ./m\noutput_dir: x\ntrain_file: rows.jsonl\n",
      "model:\n  name: ./m\ntuning:\n  mode: full\ndata:\n"
      "  train_path: rows.jsonl\n"};
  for (const char* const file : files) {
    const Draft draft = Of("s.yaml", file);
    const absl::StatusOr<LoadedConfig> loaded = Load(draft);
    ASSERT_TRUE(loaded.ok()) << loaded.status() << ConfigText(draft, "");
    EXPECT_THAT(loaded->notes, IsEmpty()) << file;
    const RunConfig& run = loaded->config;
    EXPECT_EQ(run.schedule().kind() == Schedule::CONSTANT, file == files[0]);
    EXPECT_EQ(run.batch().micro_batch_size(),
              draft.Number("batch.micro_batch_size", 0));
    EXPECT_GT(run.train().max_epochs(), 0) << file;
  }
}

TEST_F(ImportTest, SignalsAndMetrics) {
  const std::string trl =
      "model_name_or_path: o/m\ndataset_name: o/d\nuse_peft: true\n"
      "use_dora: true\nlabel_smoothing_factor: 0.1\nneftune_noise_alpha: 5\n"
      "truncation_mode: keep_end\n";
  Expect(Of("t.yaml", trl),
         "adapter.lora.dora: true; objective.label_smoothing: 0.1; "
         "objective.noise_alpha: 5; train_data.truncation: KEEP_END; whole");
  Expect(Of("p.yaml", trl + "beta: 0.2\n"),
         "no objective.label_smoothing; lost neftune_noise_alpha");
  const Draft axolotl =
      Of("x.yml",
         "base_model: ./m\ndatasets: [{path: ./d, type: chat_template}]\n"
         "test_datasets: [{path: t/a.jsonl}, {path: u/a.jsonl}]\n"
         "load_best_model_at_end: true\nmetric_for_best_model: a_1_loss\n"
         "eval_strategy: steps\neval_steps: 20\npeft_use_dora: true\n"
         "adapter: lora\n");
  Expect(axolotl, R"(train.best_metric: "eval_a_1_loss"; train.eval_every: 20;
                     adapter.lora.dora: true)");
  const absl::StatusOr<LoadedConfig> run = Load(axolotl);
  ASSERT_TRUE(run.ok()) << run.status() << ConfigText(axolotl, "");
  ASSERT_EQ(run->config.eval_sets_size(), 2);
  EXPECT_EQ(run->config.eval_sets(0).name(), "a");
  EXPECT_EQ(run->config.eval_sets(1).name(), "a_1");
  EXPECT_THAT(run->config.eval_sets(1).data().type_url(),
              HasSubstr("capstan.chat.Config"));
}

// What no evaluation here measures would stop the run at its first.
TEST_F(ImportTest, BestMetricsAreMeasured) {
  const auto make = [&](const std::string& metric) {
    return Of("m.yaml",
              "base_model: ./m\nval_set_size: 0.1\neval_steps: 20\n"
              "eval_strategy: steps\nload_best_model_at_end: true\n"
              "datasets: [{path: ./d, type: chat_template}]\n" +
                  metric);
  };
  for (const char* const metric :
       {"", "metric_for_best_model: loss\ngreater_is_better: false\n",
        "metric_for_best_model: eval_loss\n",
        "metric_for_best_model: perplexity\n"}) {
    const Draft draft = make(metric);
    Expect(draft, "no train.best_metric; not differs greater_is_better");
    EXPECT_THAT(Keys(draft, Effect::kLost), IsEmpty()) << metric;
  }
  const Draft other =
      make("metric_for_best_model: accuracy\ngreater_is_better: true\n");
  Expect(other, "no train.best_metric");
  EXPECT_THAT(other.table(),
              Contains(AllOf(Field(&TableLine::key, "metric_for_best_model"),
                             Field(&TableLine::effect, Effect::kLost),
                             Field(&TableLine::note, HasSubstr("eval_loss")))));
  Expect(make("greater_is_better: true\n"), "differs greater_is_better");
}

TEST_F(ImportTest, AnswersWithLabels) {
  Expect(Of("k.sh",
            "trl kto --model_name_or_path o/m --dataset_name o/p --use_peft "
            "--beta 0.2 --undesirable_weight 0.5"),
         "objective: capstan.dpo; objective.loss: KTO; "
         "objective.undesirable_weight: 0.5; train_data.kind: UNPAIRED; "
         "optimizer.learning_rate: 1e-6; adapter.lora.dropout: 0");
  // A file alone doesn't name the program.
  const std::string file =
      "model_name_or_path: o/m\ndataset_name: o/p\nbeta: 0.2\nloss_type: ";
  Expect(Of("k.yaml", file + "kto\n"),
         "objective.loss: KTO; train_data.kind: UNPAIRED");
  Expect(Of("k.yaml", file + "apo_zero_unpaired\n"),
         "objective.loss: APO_ZERO_UNPAIRED; train_data.kind: UNPAIRED");
}

TEST_F(ImportTest, RewardModels) {
  Expect(Of("r.sh",
            "trl reward --model_name_or_path o/m --dataset_name o/p --use_peft "
            "--center_rewards_coefficient 0.01 --lora_task_type SEQ_CLS"),
         "objective: capstan.reward; model.score_head: true; "
         "objective.center_rewards_coefficient: 0.01; "
         "optimizer.learning_rate: 1e-4; train_data.kind: PREFERENCE; whole");
}

// Each setting has one line, of what became of it.
TEST_F(ImportTest, OneLineEach) {
  Write("ds.json",
        R"({"zero_optimization": {"stage": 3, "offload_optimizer":
            {"device": "cpu"}}})");
  const Draft draft = Of(
      "t.sh",
      "torchrun --nproc_per_node 4 sft.py --model_name_or_path o/m "
      "--weight_decay 0.1 --load_best_model_at_end true --deepspeed ds.json");
  EXPECT_THAT(Keys(draft, Effect::kMapped),
              Not(Contains(AnyOf("weight_decay", "load_best_model_at_end"))));
  Expect(draft, "differs weight_decay; lost load_best_model_at_end");
  size_t lines = 1000;
  for (const size_t columns : {80, 200}) {
    const std::string table = TableText(draft, columns);
    EXPECT_THAT(table, HasSubstr("launch.processes: 4"));
    EXPECT_THAT(table, HasSubstr("strategy.cpu_offload: true"));
    size_t count = 0;
    for (const absl::string_view line : absl::StrSplit(table, '\n')) {
      EXPECT_LE(line.size(), columns) << line;
      ++count;
    }
    // A wider table has fewer lines.
    EXPECT_LT(count, lines);
    lines = count;
  }
}

// A config of text from others stays one: nothing gets out of its quotes.
TEST_F(ImportTest, QuotesAndLines) {
  EXPECT_THAT(
      ConfigText(Of("q.yaml",
                    "model_name_or_path: \"a\\\"\\nb: c\"\noutput_dir: x\n"
                    "\"k\\nlaunch: 1\": \"v\\nlaunch: 2\"\n"),
                 ""),
      AllOf(HasSubstr("pretrained: \"a\\\"\\nb: c\""),
            Not(HasSubstr("\nlaunch: "))));
}

TEST_F(ImportTest, WhatIsNoSettings) {
  EXPECT_THAT(Error(Write("a.yaml", "a: [1\n")), HasSubstr("a.yaml:2: isn't"));
  EXPECT_THAT(Error(Write("a.yaml", ",a: 1\n")), HasSubstr("a.yaml:1: isn't"));
  EXPECT_THAT(Error(Write("a.yaml", "a\n---\n[b], c\n")),
              HasSubstr("a.yaml:3: isn't"));
  EXPECT_THAT(Error(Write("b.yaml", "words\n")), HasSubstr("has no settings"));
  EXPECT_THAT(Error(Write("c.yaml", "a: 1\n")),
              HasSubstr("isn't of a program"));
  EXPECT_THAT(Error(Write("d.json", "{\"a\": ")), HasSubstr("isn't JSON"));
  EXPECT_THAT(Error(Write("t.py", "x = 1\n")), HasSubstr("Python isn't read"));
  EXPECT_THAT(Error(folder_.path() + "/nowhere.yaml"), HasSubstr("nowhere"));
  EXPECT_THAT(Error(Write("e.yaml", "include: e.yaml\ntuning: {mode: lora}\n")),
              HasSubstr("one names itself"));
  std::string bomb = "base_model: [x, x]\na0: &a0 [x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [");
    for (int j = 0; j < 8; ++j) absl::StrAppend(&bomb, "*a", i - 1, ", ");
    absl::StrAppend(&bomb, "]\n");
  }
  EXPECT_THAT(Error(Write("f.yaml", bomb)), HasSubstr("aliases"));
  EXPECT_FALSE(Import({Write("g.yaml", std::string(100000, '['))}, "/").ok());
  EXPECT_FALSE(Import({Write("h.json", std::string(100000, '['))}, "/").ok());
}

// Cut, doubled and changed bytes of each kind: an error or a draft.
TEST_F(ImportTest, BrokenFiles) {
  const std::string texts[] = {
      "base_model: ./m\ndatasets: [{path: ./a, type: alpaca}]\nlora_r: 1e3\n"
      "lora_target_modules: [q, \"v\"]\nwarmup_steps: 10\nx: &a {b: *a}\n",
      R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8},
          "train_batch_size": 64, "optimizer": {"params": {"betas": [0, 1]}}})",
      "A='x y'\nsrun $A; accelerate launch --config_file \"$A\" a.py \\\n"
      "--learning_rate=1e-4 --lora_r ${A:-3} --optim \"adamw\" # c\n",
      "compute_environment: LOCAL_MACHINE\nnum_processes: 99999999999999\n"
      "num_machines: -1\nfsdp_config: {fsdp_sharding_strategy: 1}\n"};
  std::mt19937 random(1);
  const std::string bytes = "{}[]:,-&*\"'\\$#!|>%@`\n\t\x00\xff 0e9~";
  for (int i = 0; i < 400; ++i) {
    std::string text = texts[i % 4];
    for (int change = 0; change < 1 + i % 5; ++change) {
      const size_t at = random() % (text.size() + 1);
      const char byte = bytes[random() % bytes.size()];
      if (random() % 3 == 0) {
        text.resize(at);
      } else if (at < text.size() && random() % 2 == 0) {
        text[at] = byte;
      } else {
        text.insert(at, 1 + random() % 3, byte);
      }
    }
    const absl::StatusOr<Draft> draft =
        Import({Write(i % 2 == 0 ? "broken.yaml" : "broken", text)}, "/");
    if (draft.ok()) {
      // A config that is one: only the absurd number of processes is wrong.
      EXPECT_THAT(std::string(Load(*draft).status().message()),
                  AnyOf("", HasSubstr("launch.processes: must be")))
          << text;
    } else {
      EXPECT_NE(draft.status().message(), "") << text;
    }
  }
}

}  // namespace
}  // namespace capstan::import
