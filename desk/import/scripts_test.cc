// SPDX-License-Identifier: Apache-2.0
//
// Commands and scripts that start a training: their words and their options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "desk/import/import_testing.h"

namespace capstan::import {
namespace {

using ::testing::HasSubstr;

// Commands as they are written every day.
TEST_F(ImportTest, Commands) {
  Write("tt.yaml",
        "model:\n  _component_: a.llama3_8b\nbatch_size: 2\n"
        "checkpointer:\n  checkpoint_dir: /m\n"
        "optimizer:\n  _component_: torch.optim.AdamW\n");
  Write("x.yml", "base_model: o/m\nmicro_batch_size: 1\n");
  const std::string model =
      "--model_name_or_path o/m --per_device_train_batch_size 3";
  const struct {
    std::string command;
    const char* model;
    const char* batch;  // micro, global
  } cases[] = {
      {"tune run full_finetune_single_device --config tt.yaml batch_size=8",
       "/m", "8 8"},
      {"tune run --nproc_per_node 4 full_finetune_distributed --config tt.yaml",
       "/m", "2 8"},
      {"python -m trl.scripts.sft " + model, "hf:o/m", "3 3"},
      {"torchrun --nproc_per_node 2 -m trl.scripts.sft " + model, "hf:o/m",
       "3 6"},
      {"python -m torch.distributed.run --nproc_per_node 2 sft.py " + model,
       "hf:o/m", "3 6"},
      {"python -m axolotl.cli.train x.yml --micro_batch_size 4", "hf:o/m",
       "4 4"},
      {"axolotl train x.yml --launcher torchrun -- --nproc_per_node=2",
       "hf:o/m", "1 2"},
      {"trl sft - --- --output_dir '' " + model, "hf:o/m", "3 3"},
  };
  for (const auto& given : cases) {
    SCOPED_TRACE(given.command);
    const Draft draft = Of("run.sh", given.command);
    EXPECT_EQ(draft.Text("model.pretrained"),
              absl::StrCat("\"", given.model, "\""));
    EXPECT_EQ(absl::StrCat(draft.Text("batch.micro_batch_size"), " ",
                           draft.Text("batch.global_batch_size")),
              given.batch);
  }
}

// What the shell does to words, and what of a script isn't read.
TEST_F(ImportTest, Scripts) {
  const std::string trl =
      "trl sft --model_name_or_path o/m --dataset_name o/d ";
  Expect(Of("a.sh",
            "ARGS=(\n  --seed 7  # theirs\n  --lora_target_modules \"q_proj\" "
            "v\n)\nARGS+=(--use_peft)\nNONE=()\n" +
                trl +
                "\"${ARGS[@]}\" \"${NONE[@]}\" \"$@\" --max_length 9 $* > l "
                "2>&1 | tee log\n"),
         R"(train.seed: 7; adapter.lora.target_modules: ["q_proj", "v"];
            train_data.max_length: 9; whole)");
  Expect(Of("r.sh", trl + "2>&1 --seed 8 \"$@\" &>> log\n"),
         R"(train_data.path: "hf:o/d"; train.seed: 8)");
  const Draft last =
      Of("l.sh", trl +
                     "--learning_rate 1e-4 --learning_rate=+3e-5 --seed -1 $X\n"
                     "trl dpo --beta 1\n");
  Expect(last, "optimizer.learning_rate: 3e-5");
  EXPECT_THAT(Keys(last, Effect::kLost),
              ::testing::UnorderedElementsAre("seed", "line 1", "line 2"));

  std::string text(400000, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = "$(${"[i % 4];
  Make({Write("open.sh", trl + text)});
  text = absl::StrCat("A=", std::string(4000, 'a'), "\n", trl);
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&text, " $A");
  EXPECT_THAT(Error(Write("much.sh", text)), HasSubstr("variables stand for"));
}

TEST_F(ImportTest, TrlsLauncher) {
  Expect(Of("t.yaml",
            "model_name_or_path: o/m\nmax_length: 9\n"
            "per_device_train_batch_size: 1\naccelerate_config: zero3\n"),
         "strategy: capstan.fsdp; batch.global_batch_size: 8; "
         "not lost accelerate_config");
  Expect(Of("t.sh", "trl sft --config t.yaml --num_processes 2\n"),
         "batch.global_batch_size: 2");
}

// What is written into a file, or read by another program, is no option.
TEST_F(ImportTest, HereDocumentsAndOtherPrograms) {
  Expect(Of("h.sh",
            "cat > ds.json <<'EOF' <<-END\n{\"seed\": 1}\ntrl dpo --seed 2\n"
            "EOF\n\ttrl dpo --seed 3\n\tEND\ncat <<< 'trl dpo --seed 4'\n"
            "trl sft --model_name_or_path o/m --seed 5 2> >(tee \"$LOG\" >&2) "
            "\\\n  --dataset_name o/d > >(tee log) 2>&1\n"),
         R"(train.seed: 5; train_data.path: "hf:o/d"; whole)");
  Of("open.sh", "trl sft --model_name_or_path o/m <<EOF\nopen\n");
}

// A script of one's own, whose launcher's file is given, too.
TEST_F(ImportTest, OtherScripts) {
  const std::string launch =
      Write("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n");
  const Draft draft = Make(
      {launch, Write("run.sh",
                     "accelerate launch --config_file a.yaml main.py "
                     "--model_name_or_path o/m --output_dir x --deepspeed\n")});
  Expect(draft, "differs main.py; not lost deepspeed; launch.processes: 2");
  const std::vector<std::string> mapped = Keys(draft, Effect::kMapped);
  EXPECT_EQ(std::count(mapped.begin(), mapped.end(), "num_processes"), 1);
  Expect(Of("r.sh", "python run_clm.py --model_name_or_path o/m\n"),
         "not default run_clm.py");
}

}  // namespace
}  // namespace capstan::import
