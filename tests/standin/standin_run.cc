// SPDX-License-Identifier: Apache-2.0
#include "tests/standin/standin_run.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace capstan {

std::vector<std::string> Small(const std::string& config) {
  std::vector<std::string> fields;
  if (config == "llada_quickstart.pbtxt") {
    fields = {"model.d_model=64", "model.mlp_hidden_size=176",
              "model.n_layers=3"};
  } else if (config == "run_distributed.pbtxt" ||
             config == "sft_quickstart.pbtxt" ||
             config == "dpo_quickstart.pbtxt") {
    fields = {"model.hidden_size=64", "model.intermediate_size=176",
              "model.num_hidden_layers=3", "model.num_attention_heads=4",
              "model.num_key_value_heads=2"};
  }
  if (config == "run_distributed.pbtxt" || config == "llada_quickstart.pbtxt") {
    fields.push_back("train_data.sequence_length=32");
  }
  if (config == "sft_quickstart.pbtxt") {
    fields.push_back("train_data.max_length=64");
  }
  return fields;
}

std::string SmallModel(const std::string& name) {
  nlohmann::json config = ReadJson(Runfile("tests/standin/" + name));
  config["hidden_size"] = 64;
  config["intermediate_size"] = 176;
  config["head_dim"] = 16;
  config["vocab_size"] = 256;
  if (config.contains("num_experts")) {
    config["num_experts"] = 8;
    config["moe_intermediate_size"] = 48;
  }
  if (config.contains("sliding_window")) {
    config["query_pre_attn_scalar"] = 16;
    config["sliding_window"] = 8;
    config["num_hidden_layers"] = config["sliding_window_pattern"];
  }
  return WriteText(NewTestFolder("model") + "/config.json", config.dump());
}

std::vector<std::string> ShortRun(int ranks,
                                  const std::vector<std::string>& more) {
  std::vector<std::string> args = {"--config=" +
                                   Runfile("configs/run_distributed.pbtxt")};
  for (const std::string& field : Small("run_distributed.pbtxt")) {
    args.insert(args.end(), {"--set", field});
  }
  for (const char* field :
       {"train.max_steps=2", "train.eval_every=0", "train.eval_batches=1",
        "train.sample_prompts=", "schedule.warmup_steps=1",
        "batch.micro_batch_size=2", "batch.global_batch_size=8"}) {
    args.insert(args.end(), {"--set", field});
  }
  args.insert(args.end(),
              {"--set", "launch.processes=" + std::to_string(ranks)});
  for (const std::string& field : more) {
    args.insert(args.end(), {"--set", field});
  }
  return args;
}

std::vector<std::string> FewHistories() {
  return {"collect.streams=5",
          "collect.steps=1000",
          "train_data.steps=200",
          "train_data.path=" + ::testing::TempDir() + "/histories.hdf5",
          "batch.micro_batch_size=2",
          "batch.global_batch_size=8",
          "objective.evaluation.final_episodes=1",
          "objective.evaluation.episodes=1",
          "objective.evaluation.streams=1"};
}

StandinRun RunOn(int gpus, const std::vector<std::string>& args,
                 const std::string& settings, const std::string& output_dir,
                 const std::map<std::string, std::string>& environment) {
  const std::string folder = NewTestFolder("standin");
  const std::string out = output_dir.empty() ? folder + "/out" : output_dir;
  const std::string report = folder + "/report";
  std::filesystem::create_directory(report);
  std::vector<std::string> all = args;
  const bool trains = absl::StartsWith(args[0], "--");
  if (trains) all.insert(all.end(), {"--set", "output_dir=" + out});
  TrainerOptions options;
  options.timeout = 200;
  options.environment = environment;
  if (gpus > 0) {
    all.insert(all.begin(), Runfile("trainer/trainer"));
    options.binary = Runfile("testing/standin/run.sh");
    options.environment["CAPSTAN_STANDIN"] =
        "gpus=" + std::to_string(gpus) + ",report=" + report +
        (settings.empty() ? "" : "," + settings);
  } else {
    options.environment["CUDA_VISIBLE_DEVICES"] = "";
  }
  StandinRun run;
  run.folder = out;
  run.result = RunTrainer(all, options);
  if (std::filesystem::exists(out + "/metrics.jsonl")) {
    run.metrics = ReadMetrics(out);
  }
  for (const auto& entry : std::filesystem::directory_iterator(report)) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      // A process that was killed may leave half a line.
      const nlohmann::json one = nlohmann::json::parse(line, nullptr, false);
      if (one.is_discarded()) continue;
      run.report.push_back(one);
      if (one.contains("finding")) run.findings.push_back(one);
    }
  }
  return run;
}

}  // namespace capstan
