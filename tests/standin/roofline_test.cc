// SPDX-License-Identifier: Apache-2.0
//
// testing/roofline on runs of all kinds, and the FLOPs that it and MFU count
// by formula beside those of the works that the stand-in device has seen.
// bench/gpu_kernels, which a real GPU measures, runs to its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/run_folder.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

using Sets = std::vector<std::string>;

TrainerResult Roofline(const std::string& config, const Sets& sets,
                       const std::vector<std::string>& flags) {
  TrainerOptions options;
  options.timeout = 120;
  options.binary = Runfile("testing/roofline/roofline");
  options.environment["CAPSTAN_STANDIN_RUN"] =
      Runfile("testing/standin/run.sh");
  options.environment["CAPSTAN_STANDIN_LIBRARIES"] =
      Runfile("testing/standin/lib");
  std::vector<std::string> args = {"--json", "--config=" + config};
  args.insert(args.end(), flags.begin(), flags.end());
  for (const std::string& set : sets) {
    args.insert(args.end(), {"--set", set});
  }
  return RunTrainer(args, options);
}

// What is predicted for the config; null if it fails.
nlohmann::json Predicted(const std::string& config, const Sets& sets,
                         const std::vector<std::string>& flags = {
                             "--gpu=a100"}) {
  const TrainerResult run = Roofline(config, sets, flags);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.exit_code == 0 ? nlohmann::json::parse(run.out) : nlohmann::json();
}

std::string QuickRun() { return Runfile("configs/run_distributed.pbtxt"); }

// The config's run in 16 bits with a model of a config.json in this folder.
Sets Of(const std::string& model, const Sets& more = {}) {
  Sets sets = {"precision=capstan.bf16", "model=capstan.decoder",
               "model.config=" + Runfile("tests/standin/" + model)};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// FLOPs of products, and of attention counted as ModelFlops does: in full even
// where it is causal, which the fused kernels' forward counts by half, and
// backward twice that.
double Counted(const nlohmann::json& answer) {
  const std::set<std::string> products = {"aten::mm", "aten::addmm",
                                          "aten::bmm", "aten::baddbmm",
                                          "aten::_grouped_mm"};
  double flops = 0;
  for (const nlohmann::json& kernel : answer["kernels"]) {
    const std::string name = kernel["name"];
    const double of_kernel = kernel["flops"];
    if (products.count(name) > 0) flops += of_kernel;
    if (name.find("attention_forward") != std::string::npos) {
      flops += 3 * 2 * of_kernel;
    }
  }
  return flops;
}

void ExpectFlops(const nlohmann::json& answer) {
  ASSERT_FALSE(answer.is_null());
  const double counted = Counted(answer);
  EXPECT_GT(counted, 0);
  EXPECT_NEAR(answer["model_flops_per_rank"].get<double>(), counted,
              0.02 * counted);
}

TEST(StandinFlops, OfADenseModel) {
  ExpectFlops(Predicted(QuickRun(), {"precision=capstan.bf16"}));
}
TEST(StandinFlops, OfAMixtureOfExperts) {
  ExpectFlops(Predicted(QuickRun(), Of("qwen3_moe.json")));
}
TEST(StandinFlops, OfAlgorithmDistillation) {
  const std::string config = Runfile("configs/ad_darkroom_quickstart.pbtxt");
  const Sets sets = {"collect.streams=5", "collect.steps=1000",
                     "train_data.steps=200",
                     "train_data.path=" + ::testing::TempDir() + "/flops.hdf5"};
  std::vector<std::string> args = {"collect", "--config=" + config};
  for (const std::string& set : sets) {
    args.insert(args.end(), {"--set", set});
  }
  const TrainerResult collected = RunTrainer(args);
  ASSERT_EQ(collected.exit_code, 0) << collected.err;
  ExpectFlops(Predicted(config, sets));
}

// A frozen base has no gradients, and a packed one is unpacked for each use.
TEST(StandinRoofline, AdaptersAndPackedBases) {
  const nlohmann::json whole = Predicted(QuickRun(), Of("gemma3.json"));
  const nlohmann::json lora =
      Predicted(QuickRun(), Of("gemma3.json", {"adapter.lora.rank=8"}));
  const nlohmann::json packed = Predicted(
      QuickRun(),
      Of("gemma3.json", {"adapter.lora.rank=8", "adapter.lora.quantize=NF4"}));
  ASSERT_FALSE(whole.is_null() || lora.is_null() || packed.is_null());
  EXPECT_LT(lora["flops"], whole["flops"]);
  EXPECT_LT(lora["predictions"][0]["traced_bytes"],
            whole["predictions"][0]["traced_bytes"]);
  const auto has = [](const nlohmann::json& answer, const std::string& name) {
    for (const nlohmann::json& kernel : answer["kernels"]) {
      if (kernel["name"].get<std::string>().find(name) != std::string::npos) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(has(packed, "nf4"));
  EXPECT_FALSE(has(lora, "nf4"));
}

// Shards among 4 ranks and replicas among 2 groups of them.
TEST(StandinRoofline, GroupsOfRanks) {
  const Sets whole = Of("gemma3.json", {"strategy=capstan.fsdp"});
  Sets hybrid = whole;
  hybrid.push_back("strategy.shard_group_size=4");
  const std::vector<std::string> flags = {"--gpu=h100", "--gpus=8"};
  const nlohmann::json all = Predicted(QuickRun(), whole, flags);
  const nlohmann::json groups = Predicted(QuickRun(), hybrid, flags);
  ASSERT_FALSE(all.is_null() || groups.is_null());
  EXPECT_EQ(Counted(all), Counted(groups));
  EXPECT_NE(all["bytes_sent"], groups["bytes_sent"]);
  // A rank holds a quarter rather than an eighth of the states.
  EXPECT_GT(groups["traced_bytes"], all["traced_bytes"]);

  // On two hosts the shards of all go over the network, and of groups the
  // replicas' sums, of ranks that are four apart.
  std::vector<std::string> hosts = flags;
  hosts.push_back("--hosts=2");
  const auto communication = [](const nlohmann::json& answer) {
    return answer["predictions"][0]["communication_seconds"].get<double>();
  };
  const nlohmann::json spread = Predicted(QuickRun(), whole, hosts);
  const nlohmann::json near = Predicted(QuickRun(), hybrid, hosts);
  ASSERT_FALSE(spread.is_null() || near.is_null());
  EXPECT_EQ(spread["hosts"], 2);
  EXPECT_GT(communication(spread), communication(all));
  EXPECT_GT(communication(near), communication(groups));
}

TEST(StandinRoofline, AutoIsWhatFitsEachGpu) {
  const nlohmann::json answer = Predicted(
      QuickRun(),
      Of("gemma3.json",
         {"batch.micro_batch_size=AUTO", "batch.global_batch_size=16384"}),
      {"--gpu=a10,b200"});
  ASSERT_FALSE(answer.is_null());
  const nlohmann::json& small = answer["predictions"][0];
  const nlohmann::json& large = answer["predictions"][1];
  EXPECT_LT(small["micro_batch"], large["micro_batch"]);
  for (const nlohmann::json& gpu : {small, large}) {
    EXPECT_EQ(gpu["fits"], true) << gpu;
    EXPECT_LT(gpu["step_seconds_range"][0], gpu["step_seconds"]);
    EXPECT_LT(gpu["step_seconds"], gpu["step_seconds_range"][1]);
  }
}

TEST(StandinRoofline, MoreGpusThanAMachineHas) {
  const TrainerResult run = Roofline(QuickRun(), {}, {"--gpus=1000"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("--gpus is 1000, 1000 of a host: NVLink"));
  EXPECT_THAT(Roofline(QuickRun(), {}, {"--gpus=6", "--hosts=4"}).err,
              HasSubstr("--hosts is 4, which doesn't divide the 6 GPUs"));
}

// LibTorch makes an NCCL communicator's ids on several ranks from 129 on, of
// which only one is on paper.
TEST(StandinRoofline, ManyHosts) {
  const nlohmann::json few = Predicted(
      QuickRun(), {"strategy=capstan.zero2", "batch.global_batch_size=128"},
      {"--gpu=a100", "--gpus=16", "--hosts=2"});
  const nlohmann::json many = Predicted(
      QuickRun(), {"strategy=capstan.zero2", "batch.global_batch_size=1280"},
      {"--gpu=a100", "--gpus=160", "--hosts=20"});
  ASSERT_TRUE(few.is_object() && many.is_object());
  // A ring over n ranks sends (n - 1) / n of twice the gradients.
  EXPECT_GT(many["bytes_sent"], few["bytes_sent"]);
  EXPECT_LT(many["bytes_sent"], 1.1 * few["bytes_sent"].get<double>());
}

TEST(StandinKernelsBench, MeasuresEveryKernel) {
  TrainerOptions options;
  options.timeout = 120;
  options.binary = Runfile("testing/standin/run.sh");
  options.environment["CAPSTAN_STANDIN"] = "gpu=h100";
  const TrainerResult run =
      RunTrainer({Runfile("bench/gpu_kernels"), "1"}, options);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::istringstream lines(run.out);
  std::set<std::string> kernels;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json one = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(one.is_discarded()) << line;
    EXPECT_GT(one["bytes"], 0);
    kernels.insert(one["kernel"]);
  }
  EXPECT_GE(kernels.size(), 10);
}

}  // namespace
}  // namespace capstan
