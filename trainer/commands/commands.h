// SPDX-License-Identifier: Apache-2.0
//
// The trainer's command lines. Each command is a function from its options to
// the process's exit code; errors are one sentence on standard error.
#ifndef CAPSTAN_TRAINER_COMMANDS_COMMANDS_H_
#define CAPSTAN_TRAINER_COMMANDS_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"

namespace capstan {

// `trainer [COMMAND] ..`: parses the command line and runs the command.
// start_seconds: when the process was executed, on CLOCK_BOOTTIME.
int Main(int argc, char** argv, double start_seconds);

// What train, check and plan take.
struct RunOptions {
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
  bool print_config = false;
  double start_seconds = 0.0;  // as given to Main
  // The words of the command line (CommandWords), to say how to go on.
  std::vector<std::string> command;
  // What the config's `collect` makes is made where it is missing; else that is
  // an error.
  bool collect = false;
  bool force = false;  // `collect` may replace data that is there
  // In place of configs: one's text, which a command has made.
  std::string config_text;
};

struct PreviewOptions {
  RunOptions run;
  int64_t samples = 3;
  int64_t tokens = 48;  // of each sample, listed one by one
};

struct CompareOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string output_dir;  // empty: as the config says
  // Runs that are done already in output_dir aren't run again.
  bool resume = false;
  std::vector<std::string> plugin_path;
  std::vector<std::string> command;  // the words of the command line
};

struct GenerateOptions {
  std::string model;
  std::string adapter;  // empty: none
  absl::optional<std::string> prompt;
  std::vector<int64_t> prompt_ids;
  // Prompts, one a line (commands/prompts.h); "-": standard input.
  std::string input;
  std::string output;  // a file of prompts and texts; empty: they are shown
  absl::optional<int64_t> max_new_tokens;
  bool greedy = false;
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  uint64_t seed = 0;
  std::vector<std::string> overrides;  // of the model's config
  std::vector<std::string> plugin_path;
};

struct ChatOptions {
  std::string model;
  std::string adapter;        // empty: none
  std::string system;         // the first message; empty: none
  std::string chat_template;  // its name; empty: the tokenizer's own
  absl::optional<int64_t> max_new_tokens;  // of an answer
  bool greedy = false;
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  uint64_t seed = 0;
  std::vector<std::string> overrides;  // of the model's config
  std::vector<std::string> plugin_path;
};

struct EvalOptions {
  std::string model;
  std::string adapter;               // empty: none
  std::vector<std::string> configs;  // empty: the run that made the model
  std::string data;                  // empty: what that run evaluates on
  int64_t batch_size = 0;            // samples of a forward; 0: the run's
  int64_t max_batches = 0;           // 0: the whole data
  bool loss_only = false;
  bool json = false;
  std::string output;                  // a folder; empty: nothing is written
  std::vector<std::string> overrides;  // of eval_data, objective and the rest
  std::vector<std::string> plugin_path;
};

struct MergeOptions {
  std::string model;
  std::string adapter;
  std::string output;
  bool other_base = false;
  std::vector<std::string> plugin_path;
};

struct TokenizeOptions {
  std::string tokenizer;
  std::vector<std::string> inputs;
  std::string output;  // without ".tokens"
  int threads = 0;     // 0: one a core
  bool add_ends = false;
};

// The flags, and their defaults, of LLaDA's Python scripts.
struct LladaOptions {
  std::string data_dir;
  std::string model_name = "GSAI-ML/LLaDA-8B-Instruct";
  int64_t batch_size = 1;  // of each rank
  int64_t epochs = 5;
  double learning_rate = 1e-5;
  std::string save_dir = "checkpoints_pretrained";
  // Default: what the device is fast in.
  absl::optional<bool> fp16;
  bool resume = false;
  RunOptions run;  // configs are not used
};

// docs/llada.md has the files that it writes.
struct LladaDataOptions {
  std::string text;
  std::string tokenizer;  // empty: characters
  std::string output;
  int64_t sequence_length = 4096;
  int64_t stride = 0;  // 0: half of it
  double validation_fraction = 0.1;
};

struct NewPluginOptions {
  std::string category;  // "optimizer"
  std::string name;      // "acme.lion"
  std::string folder;
  std::string capstan;  // its workspace; empty: as far as it is known
};

int TrainCommand(const RunOptions& options);
int CheckCommand(const RunOptions& options);
int PlanCommand(const RunOptions& options);
int PreviewCommand(const PreviewOptions& options);
int CompareCommand(const CompareOptions& options);
int EvalCommand(const EvalOptions& options);
int GenerateCommand(const GenerateOptions& options);
int ChatCommand(const ChatOptions& options);
int MergeCommand(const MergeOptions& options);
int CollectCommand(const RunOptions& options);
int TokenizeCommand(const TokenizeOptions& options);
int LladaCommand(const LladaOptions& options);
int LladaDataCommand(const LladaDataOptions& options);
int NewPluginCommand(const NewPluginOptions& options);
int PluginsCommand(const std::vector<std::string>& plugin_path);
int EnvCommand();

// Prints "ERROR: message", with the field that it is about, and returns the
// exit code for it. What a signal has stopped (CANCELLED) is no error: its
// message alone, and 128 + signal.
int Fail(const absl::Status& status);

// Relative folders made absolute against the caller's (under `bazel run` the
// process runs elsewhere).
std::vector<std::string> FromCaller(const std::vector<std::string>& folders);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_COMMANDS_H_
