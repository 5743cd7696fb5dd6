// SPDX-License-Identifier: Apache-2.0
//
// The trainer's commands. --help lists them though libcapstan_desk.so may not
// be built yet.
#include "trainer/commands/command.h"

namespace capstan {

const std::vector<CommandName>& CommandNames() {
  static const auto* const names = new std::vector<CommandName>{
      {"init", "Write a config for your data, after a few questions", true},
      {"train", "Train as a config says (the default)", false},
      {"check", "Parse a config, make its plugins and see that they fit",
       false},
      {"plan", "The memory and traffic that a run will need, by strategy",
       false},
      {"fit",
       "How a config is best run: strategy, ranks, micro-batch; time, memory, "
       "cost",
       true},
      {"import",
       "Make a config of others' settings: accelerate, DeepSpeed, TRL, "
       "axolotl..",
       true},
      {"collect", "Make the data that a config's `collect` describes", false},
      {"data", "Show what the rows of data become, and what is wrong with them",
       true},
      {"compare",
       "Run strategies side by side, or settings and seeds; report what "
       "differs",
       true},
      {"track",
       "Send runs' metrics to MLflow, Trackio, W&B, Prometheus, ..; tell "
       "alerts",
       true},
      {"watch", "Show runs on a page as they go on: curves, ranks, samples",
       true},
      {"generate", "Let a model continue a text", false},
      {"chat", "Talk with a model in the terminal", false},
      {"serve", "Answer programs and a chat page, as OpenAI's API does", true},
      {"eval", "Evaluate a model: loss, accuracy, what its objective measures",
       true},
      {"score", "Score texts with a reward model, also as a reward's program",
       true},
      {"merge", "Make a whole model of a base and a LoRA adapter", true},
      {"convert", "Make safetensors or a checkpoint of others' weights", true},
      {"export", "Write a trained model for transformers, llama.cpp or Ollama",
       true},
      {"tokenize", "Write the tokens of texts into a file to train on", true},
      {"runs", "The runs below a folder: list, find, tag, compare, clear away",
       true},
      {"ls", "List a run's checkpoints: size, age, loss, whether whole", true},
      {"who", "The rows behind a step of a run, and what each adds to its loss",
       true},
      {"verify",
       "Read every byte of a run's checkpoints, and say what is damaged", true},
      {"audit",
       "Whether a run's receipts hold, and its steps come out the same", true},
      {"forget", "Train a run again as if it had never met some of its rows",
       true},
      {"why-slow",
       "Say where a run's time goes, what limits it, and what would help",
       true},
      {"script", "Print a file to submit to a cluster: SLURM, Kubernetes, ..",
       true},
      {"new-plugin", "Write a plugin to start from, with its test and config",
       true},
      {"plugins", "List the plugins that a config can name", false},
      {"env", "Versions and hardware, for a bug report", false},
      {"doctor",
       "Whether this machine, and the others of a run, are fit to train", true},
      {"gpus", "GPUs: memory, load, temperature, links, processes", true},
      {"explain", "What a kind of error means, and what to do", true},
      {"help", "What a config's field, message or plugin means", true},
      {"schema", "Print a JSON schema of configs, plugins included", true},
      {"completion", "Print a script that has a shell complete commands", true},
  };
  return *names;
}

}  // namespace capstan
