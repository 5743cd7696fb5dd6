// SPDX-License-Identifier: Apache-2.0
//
// That the table says what becomes of each setting: of real files' rows that
// once said more, less or something else than the config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "desk/import/import_testing.h"

namespace capstan::import {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

// What stands in place of a lost value is in its line, not in a second one.
TEST_F(ImportTest, InPlaceOfALostValue) {
  const Draft axolotl =
      Of("x.yml", "base_model: o/m\noptimizer: lion_8bit\nlr_scheduler: rex\n");
  Expect(axolotl,
         "optimizer: capstan.adamw; lost optimizer; not default optimizer; "
         "schedule.kind: COSINE; lost lr_scheduler; not default lr_scheduler");
  EXPECT_THAT(
      axolotl.table(),
      Contains(AllOf(Field(&TableLine::key, "lr_scheduler"),
                     Field(&TableLine::ours, "schedule.kind: COSINE"))));
  const Draft llama = Of("l.yaml",
                         "model_name_or_path: o/m\nstage: sft\n"
                         "finetuning_type: freeze\n");
  EXPECT_THAT(
      llama.table(),
      Contains(AllOf(Field(&TableLine::key, "finetuning_type"),
                     Field(&TableLine::ours, "as finetuning_type: lora"))));
  Expect(llama, "not default finetuning_type; default lora_rank");
  // The field that stands in the end.
  EXPECT_THAT(TableText(Of("w.yml",
                           "base_model: o/m\nwarmup_ratio: abc\n"
                           "max_steps: 100\n"),
                        80),
              AllOf(HasSubstr("schedule.warmup_steps: 3"),
                    Not(HasSubstr("schedule.warmup_ratio"))));
}

TEST_F(ImportTest, HubNames) {
  Expect(Of("c.sh",
            "python run_clm.py --model_name_or_path gpt2 --dataset_name "
            "no-such-set "
            "--tokenizer_name o/t"),
         R"(model.pretrained: "hf:gpt2"; train_data.path: "hf:no-such-set";
            train_data.tokenizer: "hf:o/t")");
  Expect(Of("f.sh",
            "python run_clm.py --model_name_or_path o/m --train_file rows "
            "--tokenizer_name o/m"),
         R"(train_data.path: "rows"; no train_data.tokenizer;
            unused tokenizer_name)");
  Expect(Of("t.sh",
            "python run_clm.py --model_name_or_path o/m --train_file a.txt "
            "--tokenizer_name o/t"),
         R"(train_data: capstan.text;
            train_data.tokenizer.folder: "hf:o/t")");
  // The folder of a script for a model isn't that model, unless it is one.
  const std::string script =
      "python run_clm.py --model_name_or_path gpt2 --dataset_name o/d";
  Expect(Of("gpt2/run.sh", script), R"(model.pretrained: "hf:gpt2")");
  Write("gpt2/config.json", "{}");
  Expect(Of("gpt2/run.sh", script), R"(model.pretrained: "gpt2")");
  Expect(Of("x.yml",
            "base_model: o/m\ndatasets:\n  - path: json\n"
            "    data_files: a.jsonl\n    type: chat_template\n"),
         R"(train_data.path: "a.jsonl")");
}

TEST_F(ImportTest, RowsThatRunClmHoldsBack) {
  const std::string script =
      "python run_clm.py --model_name_or_path o/m --train_file a.json ";
  Expect(Of("a.sh", script),
         "train_data.validation_fraction: 0.05; "
         "differs validation_split_percentage");
  Expect(Of("b.sh", script + "--validation_split_percentage 10"),
         "train_data.validation_fraction: 0.1");
  Expect(Of("c.sh", script + "--validation_file v.json"),
         "no train_data.validation_fraction");
  Expect(Of("n.sh", script + "--validation_split_percentage 0"),
         "no train_data.validation_fraction; train_data.packing: WRAPPED; "
         "unused validation_split_percentage");
  Expect(Of("h.sh", script + "--validation_split_percentage 100"),
         "no train_data.validation_fraction; "
         "lost validation_split_percentage");
}

// Settings that a program reads only with others.
TEST_F(ImportTest, SettingsThatDoNothing) {
  const Draft full = Of("x.yml",
                        "base_model: o/m\nlora_r: 8\nlora_alpha: 16\n"
                        "lora_target_linear: true\n");
  Expect(full, "unused lora_r; unused lora_alpha; unused lora_target_linear");
  const Draft lora = Of("y.yml", "base_model: o/m\nadapter: lora\nlora_r: 8\n");
  EXPECT_THAT(TableText(lora, 80), Not(HasSubstr("double_quant")));
  Expect(Of("ds.json",
            R"({"zero_optimization": {"stage": 3, "overlap_comm": true},
                "fp16": {"enabled": "auto", "loss_scale_window": 9},
                "gradient_accumulation_steps": 1})"),
         "unused zero_optimization.overlap_comm; "
         "unused fp16.loss_scale_window; unused gradient_accumulation_steps");
  Expect(Of("p.yaml",
            "block_size: 2048\nmodel: {name: o/m, max_seq_len: 512}\n"
            "tuning: {mode: lora}\ndata: {train_path: d.jsonl, "
            "template_path: t.jinja}\n"),
         "train_data.max_length: 512; unused block_size; "
         "lost data.template_path; no train_data.chat_template_file");
  Expect(Of("d.yml",
            "base_model: o/m\nrl: dpo\nadapter: lora\nlora_dropout: 0.1\n"),
         "adapter.lora.dropout: 0; unused lora_dropout; default beta");
  Expect(Of("s.yaml",
            "model_name_or_path: o/m\nmax_length: 9\nsave_strategy: \"no\"\n"),
         "no train.save_every; unused save_steps");
}

TEST_F(ImportTest, BatchesOfDeepSpeed) {
  const std::string batch = R"({"zero_optimization": {"stage": 1},
      "gradient_accumulation_steps": 4)";
  Expect(Of("a.json", batch + "}"), "lost gradient_accumulation_steps");
  Expect(Of("b.json", batch + R"(, "train_batch_size": 64,
                                  "train_micro_batch_size_per_gpu": 2})"),
         "launch.processes: 8; batch.global_batch_size: 64; "
         "batch.micro_batch_size: 2; not default processes");
}

// What is trained isn't quite the same.
TEST_F(ImportTest, Differences) {
  const std::string trl = "model_name_or_path: o/m\nmax_length: 9\n";
  Expect(Of("a.yaml", trl + "dtype: bfloat16\n"), "differs dtype");
  Expect(Of("b.yaml", trl + "dtype: bfloat16\nuse_peft: true\n"),
         "unused dtype");
  Expect(Of("c.yaml", trl + "dtype: float32\n"), "unused dtype");
  Expect(Of("l.yaml",
            "model_name_or_path: o/m\nstage: sft\nfinetuning_type: full\n"
            "pure_bf16: true\n"),
         "precision: capstan.bf16; differs pure_bf16; differs cutoff_len");
  // What two things come from isn't without effect when one has none.
  Expect(Of("p.yaml",
            "model_name_or_path: o/m\nstage: sft\nfinetuning_type: lora\n"
            "pure_bf16: true\n"),
         "precision: capstan.bf16; not unused pure_bf16");
  const Draft lora = Of("b.yml",
                        "base_model: o/m\nadapter: lora\nbf16: false\n"
                        "bfloat16: true\n");
  Expect(lora, "precision: capstan.bf16; not unused bfloat16");
  const std::vector<std::string> mapped = Keys(lora, Effect::kMapped);
  EXPECT_EQ(std::count(mapped.begin(), mapped.end(), "bfloat16"), 1);
  Expect(
      Of("x.yml", "base_model: o/m\nfloat16: true\nbf16: false\nfp16: false\n"),
      "precision: capstan.fp16; differs float16; not differs fp16");
  Expect(Of("w.yml",
            "base_model: o/m\nsample_packing: true\nmax_steps: 100\n"
            "warmup_ratio: 0.1\npretraining_dataset:\n  - path: o/d\n"),
         "schedule.warmup_steps: 10; not unused warmup_ratio; "
         "train_data.packing: BEST_FIT_SPLIT; differs sample_packing");
  const auto tune = [&](const std::string& family) {
    return Of(
        "t.yaml",
        absl::StrCat("model: {_component_: torchtune.models.", family,
                     "}\ncheckpointer: {checkpoint_dir: /m}\ndataset:\n"
                     "  _component_: torchtune.datasets.chat_dataset\n"
                     "  source: o/d\ntokenizer: {_component_: t.tokenizer}\n"
                     "optimizer: {_component_: torch.optim.AdamW}\n"));
  };
  Expect(tune("qwen2.qwen2_7b"), "differs tokenizer._component_");
  Expect(tune("llama3.llama3_8b"),
         "unused tokenizer._component_; not default model.lora_dropout");
}

TEST_F(ImportTest, Evaluations) {
  Expect(Of("x.yml",
            "base_model: o/m\nval_set_size: 0.1\neval_steps: 20\n"
            "early_stopping_patience: 3\n"),
         "train.eval_every: 20; train.early_stopping_patience: 3; "
         "not lost early_stopping_patience");
}

TEST_F(ImportTest, RowsOfOthers) {
  Expect(Of("h.yaml",
            "model_name_or_path: o/m\nmax_length: 9\ndataset_mixture:\n"
            "  datasets:\n    - {id: o/a, split: train, weight: 1.0}\n"
            "    - {id: o/b, split: test_sft, weight: 0.5}\n  seed: 0\n"),
         R"(train_data.source#0.path: "hf:o/a";
            train_data.source#1.path: "hf:o/b";
            lost dataset_mixture.datasets[1].split;
            lost dataset_mixture.datasets[1].weight;
            not lost dataset_mixture.datasets[0].weight)");
  Expect(Of("k.sh", "trl kto --model_name_or_path o/m --dataset_name o/d"),
         "train_data.shuffle: false; default train_sampling_strategy");
  const std::string pairs =
      "base_model: o/m\nreward_model: true\ndatasets:\n  - path: o/d\n";
  Expect(Of("r.yml", pairs + "    type: bradley_terry.chat_template\n"),
         "differs datasets[0].type; not differs excess_length_strategy");
  Expect(Of("s.yml", pairs + "    type: bradley_terry.of_mine\n"),
         "lost datasets[0].type");
  Write("data/dataset_info.json",
        R"({"seen": {"file_name": "a.json", "subset": "en",
            "columns": {"images": "images"}}})");
  Expect(Of("l.yaml", "model_name_or_path: o/m\nstage: rm\ndataset: seen\n"),
         "objective: capstan.reward; differs stage; lost dataset: seen");
}

TEST_F(ImportTest, OthersAreRefused) {
  EXPECT_THAT(Error(Write("a/adapter_config.json", R"({"peft_type": "VERA"})")),
              HasSubstr("peft_type: VERA can't be trained here"));
  for (const char* const program :
       {"online_dpo", "onlinedpo", "nash_md", "nashmd", "bco", "gspo2",
        "my_ppo", "gold", "run_mlm"}) {
    EXPECT_THAT(Error(Write("o.sh", absl::StrCat("python ", program,
                                                 ".py --model_name_or_path o/m "
                                                 "--dataset_name o/d"))),
                HasSubstr("can't be trained here"));
  }
  EXPECT_THAT(
      Error(Write("g.sh", "python gspo2.py --model_name_or_path o/m --beta 1")),
      HasSubstr("\"gspo\" can't be trained here"));
  // Others' names in these are no trainer's.
  for (const char* const script :
       {"export_sft", "sft_gold_answers", "sft_support", "sft_online"}) {
    Expect(Of("e.sh", absl::StrCat("python ", script,
                                   ".py --model_name_or_path o/m --packing")),
           "objective: capstan.causal_lm");
  }
  // Nor is a loss of pairs that isn't here one of texts.
  Expect(Of("b.yaml",
            "model_name_or_path: o/m\ndataset_name: o/p\nmax_length: 9\n"
            "loss_type: [sigmoid, bco_pair]\n"),
         "lost loss_type; objective: capstan.dpo; train_data.kind: PREFERENCE");
  Expect(Of("p.sh", "python orpo.py --model_name_or_path o/m --dataset_name d"),
         "objective.loss: ORPO; optimizer.learning_rate: 1e-6; "
         "not differs orpo.py");
}

// A script that only names a file is of the program whose file that is.
TEST_F(ImportTest, ScriptsThatReadAFile) {
  Write("l.yaml", "model_name_or_path: o/m\nstage: sft\n");
  Expect(Of("t.sh", "torchrun --nproc_per_node 2 src/train.py l.yaml"),
         "launch.processes: 2; adapter.lora.rank: 8; not differs train.py");
}

}  // namespace
}  // namespace capstan::import
