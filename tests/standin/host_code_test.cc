// SPDX-License-Identifier: Apache-2.0
//
// What the stand-in device's lists say of ATen's operators (cost.cc, shapes.cc,
// products.cc) beside LibTorch's own host code, which runs on paper: launches
// by operator, copies, waits of the host and allocations of one step, for each
// kind of training. Dtypes and shapes that LibTorch refuses fail here, too.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

// Of a step.
struct Calls {
  std::map<std::string, int> launches;  // by operator
  std::map<std::string, int> copies;    // by direction, but to the device
  int waits = 0;
  int mallocs = 0;
  std::map<std::string, int> kernels;  // by what LibTorch calls, if it does
};

// What the lists take for works of no launch, or leave out.
void CountCopies(const std::string& name, int launches, Calls* calls) {
  // Of what lies in one piece.
  if (name == "aten::copy_" && launches == 0) ++calls->copies["d2d"];
  if (name != "aten::sort") return;
  // The keys of a short row, and at the end keys and indices. Those of a long
  // one, which CUB sorts in passes of 8 bits, each with counters set to zero.
  calls->copies["d2d"] += launches == 2 ? 3 : 1;
  if (launches > 2) calls->copies["set"] += launches - 1;
}

// Of the last step of a trace.
Calls LastStepOf(const std::string& folder) {
  Calls calls;
  bool in_step = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (path.find(".trace.jsonl") == std::string::npos) continue;
    std::ifstream file(path);
    for (std::string text; std::getline(file, text);) {
      const nlohmann::json line = nlohmann::json::parse(text);
      if (line.contains("step_end")) in_step = false;
      if (line.contains("step_begin")) {
        in_step = true;
        calls = Calls();
      }
      if (!in_step) continue;
      if (line.contains("work")) {
        const std::string name = line["work"];
        const int launches = line["launches"];
        calls.launches[name] += launches;
        if (line.contains("kernel")) {
          ++calls.kernels[line["kernel"]];
        } else {
          CountCopies(name, launches, &calls);
        }
      } else if (line.contains("copy")) {
        // Batches are copied to the device whenever they are there.
        if (line["copy"] != "h2d") ++calls.copies[line["copy"]];
      } else if (line.contains("host_wait")) {
        ++calls.waits;
      } else if (line.contains("malloc")) {
        ++calls.mallocs;
      }
    }
  }
  return calls;
}

using Sets = std::vector<std::string>;

// The last of a few steps on a GPU that only notes what it is asked for.
Calls StepOnPaper(const std::string& config, const Sets& sets,
                  const std::string& gpu, const std::string& settings) {
  const std::string folder = NewTestFolder("paper");
  TrainerOptions options;
  options.timeout = 200;
  options.binary = Runfile("testing/standin/run.sh");
  options.environment["CAPSTAN_STANDIN"] =
      "paper,memory=2048G,gpu=" + gpu + ",trace=" + folder + settings;
  options.environment["CAPSTAN_ROOFLINE_FOLDER"] = folder;
  std::vector<std::string> args = {Runfile("testing/roofline/roofline"),
                                   "--config=" + Runfile("configs/" + config)};
  for (const std::string& set : sets) {
    args.insert(args.end(), {"--set", set});
  }
  const TrainerResult result = RunTrainer(args, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return LastStepOf(folder);
}

void ExpectListsHold(const std::string& config, const Sets& sets,
                     const std::string& gpu = "a100") {
  const Calls lists = StepOnPaper(config, sets, gpu, "");
  Calls code = StepOnPaper(config, sets, gpu, ",host_code");
  // The stub of cuDNN has one launch for the three kernels of a backward.
  code.launches["aten::_cudnn_attention_backward"] *= 3;
  ASSERT_FALSE(lists.launches.empty());
  std::set<std::string> names;
  for (const Calls* calls : std::vector<const Calls*>{&lists, &code}) {
    for (const auto& [name, count] : calls->launches) names.insert(name);
  }
  int by_lists = 0, by_code = 0;
  for (const std::string& name : names) {
    const auto count = [&name](const Calls& calls) {
      const auto found = calls.launches.find(name);
      return found == calls.launches.end() ? 0 : found->second;
    };
    by_lists += count(lists);
    by_code += count(code);
    EXPECT_EQ(count(lists), count(code)) << name;
  }
  std::printf("%s, %s: %d launches by the lists, %d by LibTorch's host code\n",
              config.c_str(), gpu.c_str(), by_lists, by_code);
  EXPECT_EQ(lists.copies, code.copies);
  EXPECT_EQ(lists.waits, code.waits);
  EXPECT_EQ(lists.mallocs, code.mallocs);
}

// A model of shapes that the fast kernels take, in 16 bits.
Sets With(const Sets& more) {
  Sets sets = {"precision=capstan.bf16", "batch.micro_batch_size=2",
               "batch.global_batch_size=4"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

TEST(HostCodeTest, CausalLm) {
  ExpectListsHold("run_distributed.pbtxt", {});
  ExpectListsHold("run_distributed.pbtxt", With({}));
  // More tokens than one kernel sorts.
  ExpectListsHold("run_distributed.pbtxt",
                  {"precision=capstan.bf16", "batch.micro_batch_size=64",
                   "batch.global_batch_size=64",
                   "train.activation_checkpointing=EVERY_UNIT"});
}
TEST(HostCodeTest, Sft) {
  ExpectListsHold("sft_quickstart.pbtxt", With({}));
  ExpectListsHold("sft_quickstart.pbtxt", With({"train_data.packing=NONE"}));
}
TEST(HostCodeTest, MaskedDiffusion) {
  ExpectListsHold("llada_quickstart.pbtxt", With({}));
}
TEST(HostCodeTest, AlgorithmDistillation) {
  const Sets few = FewHistories();
  std::vector<std::string> args = {
      "collect", "--config=" + Runfile("configs/ad_darkroom_quickstart.pbtxt")};
  for (const std::string& set : few) args.insert(args.end(), {"--set", set});
  const TrainerResult collected = RunTrainer(args);
  ASSERT_EQ(collected.exit_code, 0) << collected.err;
  Sets sets = few;
  sets.push_back("precision=capstan.bf16");
  ExpectListsHold("ad_darkroom_quickstart.pbtxt", sets);
}
TEST(HostCodeTest, Preferences) {
  ExpectListsHold("dpo_quickstart.pbtxt", With({}));
}
TEST(HostCodeTest, Adapters) {
  const Sets lora = {"model=capstan.decoder",
                     "model.config=" + Runfile("tests/standin/qwen3_moe.json"),
                     "train_data.sequence_length=64", "adapter.lora.rank=8"};
  ExpectListsHold("run_distributed.pbtxt", With(lora));
  Sets qlora = lora;
  qlora.push_back("adapter.lora.quantize=NF4");
  ExpectListsHold("run_distributed.pbtxt", With(qlora));
}
TEST(HostCodeTest, MixtureOfExperts) {
  ExpectListsHold(
      "run_distributed.pbtxt",
      With({"model=capstan.decoder",
            "model.config=" + Runfile("tests/standin/qwen3_moe.json")}));
}

// cuDNN's attention, products in 8 bits, experts' products grouped.
TEST(HostCodeTest, WhatAnH100HasBesides) {
  const Sets experts = {
      "model=capstan.decoder",
      "model.config=" + Runfile("tests/standin/qwen3_moe.json")};
  ExpectListsHold("run_distributed.pbtxt", With({}), "h100");
  ExpectListsHold("run_distributed.pbtxt", With({"precision=capstan.fp8"}),
                  "h100");
  ExpectListsHold("run_distributed.pbtxt",
                  With({"precision=capstan.fp8", "precision.scaling=ROW"}),
                  "h100");
  ExpectListsHold("run_distributed.pbtxt", With(experts), "h100");
}

// Partial sums of a product that is split along k could overflow in float16;
// LibTorch allows cuBLAS to round them to 16 bits, and in bfloat16 they may be.
TEST(HostCodeTest, SplitProductsAreSummedInFloat32InFloat16) {
  constexpr char kWide[] = "cublasGemmEx", kReduced[] = "cublasGemmEx reduced";
  Calls calls = StepOnPaper("run_distributed.pbtxt", {"precision=capstan.fp16"},
                            "a100", ",host_code");
  EXPECT_GT(calls.kernels[kWide], 0);
  EXPECT_EQ(calls.kernels[kReduced], 0);
  calls = StepOnPaper("run_distributed.pbtxt", {"precision=capstan.bf16"},
                      "a100", ",host_code");
  EXPECT_GT(calls.kernels[kReduced], 0);
}

}  // namespace
}  // namespace capstan
