// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/commands/commands.h"
#include "trainer/config/latest_run.h"
#include "trainer/config/load_config.h"
#include "trainer/launcher/launcher.h"
#include "trainer/session/resume.h"

// Last: LibTorch has logging macros of its own.
#include <glog/logging.h>

namespace capstan {
namespace {

// What is wrong with a folder that an option names; "" if nothing is.
std::string FolderProblem(const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_directory(FromCaller({folder})[0], error)
             ? ""
             : folder + " is not a folder";
}

// The same of a count. (CLI11's own check prints the range of doubles.)
std::string NegativeProblem(const std::string& number) {
  return number[0] == '-' ? "must not be negative, is " + number : "";
}

void AddPluginPath(CLI::App* app, std::vector<std::string>* plugin_path) {
  app->add_option("--plugin_path", *plugin_path,
                  "A folder with plugins (lib*.so), searched before the "
                  "trainer's own; may be given several times")
      ->type_name("FOLDER")
      ->check(FolderProblem);
}

// What a run has beside its config.
void AddChanges(CLI::App* app, RunOptions* options) {
  app->add_option("--set", options->overrides,
                  "Overrides one field: train.max_steps=10, "
                  "model.hidden_size=64, strategy=capstan.single; clears it: "
                  "collect=; sets a list or adds to it: profile.steps=[3,4], "
                  "profile.steps+=5")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  app->add_flag("--print_config", options->print_config,
                "Print the merged config and stop");
  AddPluginPath(app, &options->plugin_path);
}

void AddRunOptions(CLI::App* app, RunOptions* options) {
  app->add_option("--config", options->configs,
                  "A run's config (protobuf text, trainer/run_config.proto), "
                  "looked up from the caller's folder, then in configs/; "
                  "given several times, later files merge over earlier ones")
      ->type_name("FILE");
  AddChanges(app, options);
}

void AddPreviewOptions(CLI::App* app, PreviewOptions* options) {
  AddRunOptions(app, &options->run);
  app->add_option(
         "--samples", options->samples,
         "How many, from the first on; 0: what there is to know of all")
      ->check(NegativeProblem);
  app->add_option("--tokens", options->tokens,
                  "How many of each sample's tokens are listed")
      ->check(NegativeProblem);
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
  app->add_flag("--resume", options->resume,
                "Go on with a comparison that was stopped, in --output_dir: "
                "runs that are done stay");
  AddPluginPath(app, &options->plugin_path);
}

// What generate and chat have in common.
template <typename Options>
void AddSampling(CLI::App* app, Options* options) {
  app->add_option("--adapter", options->adapter,
                  "A folder with a LoRA adapter for the model (PEFT's files)")
      ->type_name("FOLDER");
  app->add_option("--max_new_tokens", options->max_new_tokens,
                  "How many tokens to add");
  app->add_flag("--greedy", options->greedy, "Always the likeliest token");
  app->add_option("--temperature", options->temperature, "Divides the logits");
  app->add_option("--top_k", options->top_k,
                  "Sample from the k likeliest tokens only");
  app->add_option("--top_p", options->top_p,
                  "Sample from the likeliest tokens of total probability p");
  app->add_option("--seed", options->seed, "Of the random numbers");
  app->add_option("--set", options->overrides,
                  "Sets a field of the objective, which samples: for masked "
                  "diffusion (LLaDA) objective.steps=64, "
                  "objective.block_length=32, objective.remasking=RANDOM, "
                  "objective.cfg_scale=1; may be given several times")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

void AddGenerateOptions(CLI::App* app, GenerateOptions* options) {
  app->add_option("--model", options->model,
                  "A Hugging Face folder, a run's folder, or one of its "
                  "checkpoints")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--prompt", options->prompt,
                  "The text to continue; default: what standard input says");
  app->add_option("--input", options->input,
                  "Prompts, one a line; rows {\"prompt\": ..}, "
                  "{\"messages\": [..]} or \"text\" in a .jsonl; - is standard "
                  "input")
      ->type_name("FILE");
  app->add_option("--output", options->output,
                  "Write the texts into a new file, rows {\"prompt\": .., "
                  "\"text\": ..}, instead of showing them")
      ->type_name("FILE");
  app->add_option("--prompt_ids", options->prompt_ids,
                  "Token ids to continue, 1,2,3; prints ids: for folders "
                  "without a tokenizer")
      ->delimiter(',');
  AddSampling(app, options);
  AddPluginPath(app, &options->plugin_path);
}

void AddChatOptions(CLI::App* app, ChatOptions* options) {
  app->add_option("--model", options->model,
                  "A Hugging Face folder, a run's folder, or one of its "
                  "checkpoints")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--system", options->system,
                  "What the conversation begins with");
  app->add_option("--template", options->chat_template,
                  "How conversations are written: chatml, smollm2, llama3, "
                  "gemma, llada; default: as the tokenizer says");
  AddSampling(app, options);
  AddPluginPath(app, &options->plugin_path);
}

void AddEvalOptions(CLI::App* app, EvalOptions* options) {
  app->add_option("--model", options->model,
                  "A Hugging Face folder, a run's folder, or one of its "
                  "checkpoints")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--adapter", options->adapter,
                  "A folder with a LoRA adapter for the model (PEFT's files)")
      ->type_name("FOLDER");
  app->add_option("--data", options->data,
                  "What to evaluate on, all of it, as the run reads its data; "
                  "default: what the run that made the model evaluates on")
      ->type_name("FILE");
  app->add_option("--config", options->configs,
                  "Take data and objective from this run's config; for models "
                  "that no run of the trainer has made")
      ->type_name("FILE");
  app->add_option("--set", options->overrides,
                  "Sets a field: eval_data.max_length=512, "
                  "eval_data=capstan.chat, "
                  "objective.evaluation.tasks=[3,14], train.seed=7; may be "
                  "given several times")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  app->add_option("--batch_size", options->batch_size,
                  "Samples of one forward; default: the run's")
      ->check(CLI::PositiveNumber);
  app->add_option("--max_batches", options->max_batches,
                  "Only so many; default: the whole data")
      ->check(CLI::PositiveNumber);
  app->add_flag("--loss_only", options->loss_only,
                "Leave out accuracy, which doubles the time");
  app->add_flag("--json", options->json, "Print JSON");
  app->add_option("--output", options->output,
                  "Also write eval.json, and what the objective draws, there")
      ->type_name("FOLDER");
  AddPluginPath(app, &options->plugin_path);
}

void AddMergeOptions(CLI::App* app, MergeOptions* options) {
  app->add_option("--model", options->model, "The base, a Hugging Face folder")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--adapter", options->adapter,
                  "The adapter, a folder with PEFT's files, or a run that "
                  "trained one (runs/NAME)")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--output", options->output, "The folder to write")
      ->type_name("FOLDER")
      ->required();
  app->add_flag("--other_base", options->other_base,
                "Merge although the adapter was trained on a base with other "
                "weights");
  AddPluginPath(app, &options->plugin_path);
}

void AddTokenizeOptions(CLI::App* app, TokenizeOptions* options) {
  app->add_option("--tokenizer", options->tokenizer,
                  "A Hugging Face folder with a tokenizer.json")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--input", options->inputs,
                  "A text (a document), or, named .jsonl, rows {\"text\": ..} "
                  "(a document each); may be given several times")
      ->type_name("FILE")
      ->required();
  app->add_option("--output", options->output, "Writes PREFIX.tokens")
      ->type_name("PREFIX")
      ->required();
  app->add_option("--threads", options->threads, "Default: one a core");
  app->add_flag("--add_ends", options->add_ends,
                "Put around each document what the tokenizer puts around a "
                "text (a token of beginning, mostly)");
}

void AddLladaOptions(CLI::App* app, LladaOptions* options) {
  app->add_option("--data_dir", options->data_dir,
                  "A folder with train_data.npy, val_data.npy, metadata.json "
                  "and vocab.json (`trainer llada-data` writes such)")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--model_name", options->model_name,
                  "The folder of a LLaDA, downloaded or of a run")
      ->type_name("FOLDER")
      ->capture_default_str();
  app->add_option("--batch_size", options->batch_size, "Windows of each device")
      ->capture_default_str();
  app->add_option("--epochs", options->epochs)->capture_default_str();
  app->add_option("--learning_rate", options->learning_rate)
      ->capture_default_str();
  app->add_option("--save_dir", options->save_dir, "Where the run goes")
      ->type_name("FOLDER")
      ->capture_default_str();
  // Callbacks, since CLI11 sets an optional flag to false where it isn't given.
  app->add_flag_callback(
      "--fp16", [options] { options->fp16 = true; },
      "Compute in float16; default: bfloat16 or float16 where the device is "
      "fast in it, else float32");
  app->add_flag_callback(
      "--no_fp16", [options] { options->fp16 = false; }, "Compute in float32");
  app->add_flag("--resume", options->resume,
                "Continue from the newest checkpoint in save_dir, if there is "
                "one");
  AddChanges(app, &options->run);
}

void AddLladaDataOptions(CLI::App* app, LladaDataOptions* options) {
  app->add_option("--text", options->text, "The text, in UTF-8")
      ->type_name("FILE")
      ->required();
  app->add_option("--output", options->output, "The folder to write")
      ->type_name("FOLDER")
      ->required();
  app->add_option("--tokenizer", options->tokenizer,
                  "A Hugging Face folder with a tokenizer.json; default: each "
                  "character is a token")
      ->type_name("FOLDER");
  app->add_option("--sequence_length", options->sequence_length,
                  "Tokens of a window")
      ->capture_default_str();
  app->add_option("--stride", options->stride,
                  "From one window to the next; default: half a window");
  app->add_option("--validation_fraction", options->validation_fraction,
                  "The part of the text, its end, that is held back")
      ->capture_default_str();
}

void AddNewPluginOptions(CLI::App* app, NewPluginOptions* options) {
  app->add_option("--category", options->category,
                  "strategy, precision, dataset_reader, collector, model, "
                  "objective or optimizer")
      ->required();
  app->add_option("--name", options->name,
                  "VENDOR.NAME, the package of its config: acme.lion")
      ->required();
  app->add_option("FOLDER", options->folder,
                  "Where VENDOR/NAME is made; may hold other plugins")
      ->required();
  app->add_option("--capstan", options->capstan,
                  "Capstan's workspace, which the plugin's builds refer to")
      ->type_name("FOLDER");
}

}  // namespace

int Fail(const absl::Status& status) {
  std::cout.flush();
  if (absl::IsCancelled(status) && StopRequested() != 0) {
    std::cerr << status.message() << std::endl;
    return 128 + StopRequested();
  }
  const absl::optional<std::string> field = FieldOf(status);
  std::cerr << "ERROR: " << (field.has_value() ? *field + ": " : "")
            << status.message() << std::endl;
  return 1;
}

std::vector<std::string> FromCaller(const std::vector<std::string>& folders) {
  const std::string caller = DefaultConfigContext(nullptr).caller_folder;
  std::vector<std::string> absolute;
  for (const std::string& folder : folders) {
    absolute.push_back(
        FollowLatestRun((std::filesystem::path(caller) / folder).string()));
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
  RunOptions collect;
  CLI::App* collect_app = app.add_subcommand(
      "collect", "Make the data that a config's `collect` describes");
  AddRunOptions(collect_app, &collect);
  collect_app->add_flag("--force", collect.force,
                        "Replace the data that is there already");
  PreviewOptions preview;
  CLI::App* preview_app = app.add_subcommand(
      "preview", "Show a run's first samples, and what of them is trained on");
  AddPreviewOptions(preview_app, &preview);
  CompareOptions compare;
  CLI::App* compare_app = app.add_subcommand(
      "compare",
      "Run strategies from one seed on the same data; report what differs");
  AddCompareOptions(compare_app, &compare);
  GenerateOptions generate;
  CLI::App* generate_app =
      app.add_subcommand("generate", "Let a model continue a text");
  AddGenerateOptions(generate_app, &generate);
  ChatOptions chat;
  CLI::App* chat_app =
      app.add_subcommand("chat", "Talk with a model in the terminal");
  AddChatOptions(chat_app, &chat);
  EvalOptions eval;
  CLI::App* eval_app = app.add_subcommand(
      "eval", "Evaluate a model: loss, accuracy, what its objective measures");
  AddEvalOptions(eval_app, &eval);
  MergeOptions merge;
  CLI::App* merge_app = app.add_subcommand(
      "merge", "Make a whole model of a base and a LoRA adapter");
  AddMergeOptions(merge_app, &merge);
  TokenizeOptions tokenize;
  CLI::App* tokenize_app = app.add_subcommand(
      "tokenize", "Write the tokens of texts into a file to train on");
  AddTokenizeOptions(tokenize_app, &tokenize);
  LladaOptions llada;
  CLI::App* llada_app = app.add_subcommand(
      "llada", "Fine-tune a LLaDA, with the flags of its Python script");
  AddLladaOptions(llada_app, &llada);
  LladaDataOptions llada_data;
  CLI::App* llada_data_app = app.add_subcommand(
      "llada-data", "Cut a text into the files that `llada` reads");
  AddLladaDataOptions(llada_data_app, &llada_data);
  NewPluginOptions new_plugin;
  CLI::App* new_plugin_app = app.add_subcommand(
      "new-plugin", "Write a plugin to start from, with its test and config");
  AddNewPluginOptions(new_plugin_app, &new_plugin);
  std::vector<std::string> plugin_path;
  CLI::App* plugins_app =
      app.add_subcommand("plugins", "List the plugins that a config can name");
  AddPluginPath(plugins_app, &plugin_path);
  CLI::App* env_app =
      app.add_subcommand("env", "Versions and hardware, for a bug report");
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App* failed, const CLI::Error& e) {
    return absl::StrCat("ERROR: ", e.what(), " (", failed->get_name(),
                        " --help)\n");
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (*check_app) return CheckCommand(check);
  if (*plan_app) return PlanCommand(plan);
  if (*collect_app) return CollectCommand(collect);
  if (*preview_app) return PreviewCommand(preview);
  if (*compare_app) {
    compare.command = CommandWords(argc, argv);
    return CompareCommand(compare);
  }
  if (*generate_app) return GenerateCommand(generate);
  if (*chat_app) return ChatCommand(chat);
  if (*eval_app) return EvalCommand(eval);
  if (*merge_app) return MergeCommand(merge);
  if (*tokenize_app) return TokenizeCommand(tokenize);
  if (*llada_app) {
    llada.run.command = CommandWords(argc, argv);
    llada.run.start_seconds = start_seconds;
    return LladaCommand(llada);
  }
  if (*llada_data_app) return LladaDataCommand(llada_data);
  if (*new_plugin_app) return NewPluginCommand(new_plugin);
  if (*plugins_app) return PluginsCommand(plugin_path);
  if (*env_app) return EnvCommand();
  train.start_seconds = start_seconds;
  train.collect = true;
  train.command = CommandWords(argc, argv);
  return TrainCommand(train);
}

}  // namespace capstan

// What main.cc looks up.
extern "C" int capstan_main(int argc, char** argv, double start_seconds) {
  return capstan::Main(argc, argv, start_seconds);
}
