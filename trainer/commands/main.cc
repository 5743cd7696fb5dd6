// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <string>

#include "plugins/sdk/status.h"
#include "trainer/commands/commands.h"
#include "trainer/config/load_config.h"

// Last: LibTorch has logging macros of its own.
#include <glog/logging.h>

namespace capstan {
namespace {

void AddPluginPath(CLI::App* app, std::vector<std::string>* plugin_path) {
  app->add_option("--plugin_path", *plugin_path,
                  "A folder with plugins (lib*.so), searched before the "
                  "trainer's own; may be given several times")
      ->type_name("FOLDER");
}

void AddRunOptions(CLI::App* app, RunOptions* options) {
  app->add_option("--config", options->configs,
                  "A run's config (protobuf text, trainer/run_config.proto), "
                  "looked up from the caller's folder, then in configs/; "
                  "given several times, later files merge over earlier ones")
      ->type_name("FILE");
  app->add_option("--set", options->overrides,
                  "Overrides one field: train.max_steps=10, "
                  "model.hidden_size=64, strategy=capstan.single")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  app->add_flag("--print_config", options->print_config,
                "Print the merged config and stop");
  AddPluginPath(app, &options->plugin_path);
}

void AddCompareOptions(CLI::App* app, CompareOptions* options) {
  app->add_option("--config", options->config,
                  "What to compare (protobuf text, "
                  "trainer/compare/compare_config.proto)")
      ->type_name("FILE")
      ->required();
  app->add_option("--set", options->overrides,
                  "Overrides one field of every run: train.max_steps=10")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  app->add_option("--output_dir", options->output_dir,
                  "Where the report and the runs go")
      ->type_name("FOLDER");
  AddPluginPath(app, &options->plugin_path);
}

void AddGenerateOptions(CLI::App* app, GenerateOptions* options) {
  app->add_option("--model", options->model,
                  "A Hugging Face folder, a run's folder, or one of its "
                  "checkpoints")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--prompt", options->prompt, "The text to continue");
  app->add_option("--prompt_ids", options->prompt_ids,
                  "Token ids to continue, 1,2,3; prints ids: for folders "
                  "without a tokenizer")
      ->delimiter(',');
  app->add_option("--max_new_tokens", options->max_new_tokens,
                  "How many tokens to add");
  app->add_flag("--greedy", options->greedy, "Always the likeliest token");
  app->add_option("--temperature", options->temperature, "Divides the logits");
  app->add_option("--top_k", options->top_k,
                  "Sample from the k likeliest tokens only");
  app->add_option("--top_p", options->top_p,
                  "Sample from the likeliest tokens of total probability p");
  app->add_option("--seed", options->seed, "Of the random numbers");
  AddPluginPath(app, &options->plugin_path);
}

}  // namespace

int Fail(const absl::Status& status) {
  std::cout.flush();
  const absl::optional<std::string> field = FieldOf(status);
  std::cerr << "ERROR: " << (field.has_value() ? *field + ": " : "")
            << status.message() << std::endl;
  return 1;
}

std::vector<std::string> FromCaller(const std::vector<std::string>& folders) {
  const std::string caller = DefaultConfigContext(nullptr).caller_folder;
  std::vector<std::string> absolute;
  for (const std::string& folder : folders) {
    absolute.push_back((std::filesystem::path(caller) / folder).string());
  }
  return absolute;
}

int Main(int argc, char** argv, double start_seconds) {
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_WARNING;
  google::InitGoogleLogging(argv[0]);

  CLI::App app(
      "Capstan trains models on many GPUs, or CPUs. Without a command it "
      "trains.\n  trainer --config=run_distributed.pbtxt");
  app.name("trainer");
  RunOptions train;
  AddRunOptions(&app, &train);
  CLI::App* train_app =
      app.add_subcommand("train", "Train as a config says (the default)");
  AddRunOptions(train_app, &train);
  RunOptions check;
  CLI::App* check_app = app.add_subcommand(
      "check", "Parse a config, make its plugins and see that they fit");
  AddRunOptions(check_app, &check);
  RunOptions plan;
  CLI::App* plan_app = app.add_subcommand(
      "plan", "The memory and traffic that a run will need, by strategy");
  AddRunOptions(plan_app, &plan);
  CompareOptions compare;
  CLI::App* compare_app = app.add_subcommand(
      "compare",
      "Run strategies from one seed on the same data; report what differs");
  AddCompareOptions(compare_app, &compare);
  GenerateOptions generate;
  CLI::App* generate_app =
      app.add_subcommand("generate", "Let a model continue a text");
  AddGenerateOptions(generate_app, &generate);
  std::vector<std::string> plugin_path;
  CLI::App* plugins_app =
      app.add_subcommand("plugins", "List the plugins that a config can name");
  AddPluginPath(plugins_app, &plugin_path);
  CLI::App* env_app =
      app.add_subcommand("env", "Versions and hardware, for a bug report");
  app.require_subcommand(0, 1);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (*check_app) return CheckCommand(check);
  if (*plan_app) return PlanCommand(plan);
  if (*compare_app) return CompareCommand(compare);
  if (*generate_app) return GenerateCommand(generate);
  if (*plugins_app) return PluginsCommand(plugin_path);
  if (*env_app) return EnvCommand();
  train.start_seconds = start_seconds;
  return TrainCommand(train);
}

}  // namespace capstan

// What main.cc looks up.
extern "C" int capstan_main(int argc, char** argv, double start_seconds) {
  return capstan::Main(argc, argv, start_seconds);
}
