// SPDX-License-Identifier: Apache-2.0
//
// Small runs that learn from rewards.
#ifndef CAPSTAN_TESTS_END_TO_END_GRPO_RUNS_H_
#define CAPSTAN_TESTS_END_TO_END_GRPO_RUNS_H_

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {

inline constexpr char kWeights[] = "/final/model.safetensors";
inline constexpr char kReward[] =
    "reward { name: 'vowels' regex { pattern: '[a-e]{2}' } }";

inline std::string Prompts() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&text, "{\"prompt\": \"", i, "+", i * 7 % 50,
                    "=\", \"answer\": \"", i + i * 7 % 50, "\"}\n");
  }
  return WriteText(NewTestFolder("data") + "/prompts.jsonl", text);
}

inline std::string Data(const std::string& path) {
  return absl::StrCat("[plugin/capstan.chat.Config] { path: '", path,
                      "' tokenizer: '", Runfile("datasets/samples/tokenizer"),
                      "' chat_template: 'chatml' kind: PROMPT max_length: 32 "
                      "shuffle: true }");
}

// 16 answers a step, four to each prompt.
inline RunText GrpoRun(const std::string& fields = "") {
  RunText run;
  run.Set("model",
          "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
          "intermediate_size: 88 num_hidden_layers: 2 num_attention_heads: 4 "
          "num_key_value_heads: 2 max_position_embeddings: 128 "
          "bos_token_id: 1 eos_token_id: 2 }")
      .Set("train_data", Data(Prompts()))
      .Set("objective",
           absl::StrCat("[plugin/capstan.grpo.Config] { num_generations: 4 "
                        "max_new_tokens: 6 ",
                        fields.empty() ? kReward : fields, " }"))
      .Batch(2, 16)
      .Train("max_steps: 6 deterministic: true log_every: 1");
  return run;
}

inline void ExpectSameRun(const std::string& folder,
                          const std::string& straight) {
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_EQ(ReadMetrics(folder).grad_norms(),
            ReadMetrics(straight).grad_norms());
  EXPECT_EQ(ReadMetrics(folder).Values("reward"),
            ReadMetrics(straight).Values("reward"));
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

// A program that says `says` to each line, but for its 17th one, where the
// first one to get there writes `hung` and says nothing.
inline std::string HangingProgram(const std::string& hung,
                                  const std::string& says) {
  const std::string script =
      WriteText(NewTestFolder("hangs") + "/hangs.py",
                absl::StrCat("import os, sys\n"
                             "for n, line in enumerate(sys.stdin):\n"
                             "    if n == 16:\n"
                             "        try:\n"
                             "            open('",
                             hung,
                             "', 'x')\n"
                             "            os.read(os.pipe()[0], 1)\n"
                             "        except FileExistsError: pass\n"
                             "    print(",
                             says, ", flush=True)\n"));
  return absl::StrCat("program { command: 'python3' command: '", script,
                      "' timeout_seconds: 1000 }");
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_END_TO_END_GRPO_RUNS_H_
