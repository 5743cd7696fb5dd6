// SPDX-License-Identifier: Apache-2.0
//
// help and schema: what a config may say.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error_code.h"
#include "desk/explain/reference_text.h"
#include "trainer/commands/command.h"

namespace capstan {
namespace {

struct HelpOptions {
  std::string topic;
  bool markdown = false;
  bool llms = false;
  std::vector<std::string> plugin_path;
};

void AddFlags(Flags& flags, HelpOptions* options) {
  flags
      .Add("TOPIC", &options->topic,
           "train.eval_every, train, strategy, capstan.fsdp, "
           "optimizer.learning_rate, or what others call it: num_train_epochs")
      .Type("");
  flags.Add("--markdown", &options->markdown,
            "Print all of them, docs/settings.md");
  flags.Add("--llms", &options->llms,
            "Print a page for language models, docs/llms.txt");
  AddPluginPath(flags, &options->plugin_path);
}

absl::StatusOr<int> Help(const HelpOptions& options) {
  PluginHost host(AllFromCaller(options.plugin_path));
  if (options.markdown || options.llms) {
    host.BuildAll();
    const Reference reference(&host);
    std::cout << (options.markdown ? SettingsMarkdown(reference)
                                   : LlmsText(reference));
    return 0;
  }
  if (options.topic.empty()) {
    return WithCode(
        absl::InvalidArgumentError(
            "name a field, message or plugin: trainer help train.eval_every; "
            "commands are in trainer --help"),
        "command/word");
  }
  for (const CommandName& command : CommandNames()) {
    if (command.name != options.topic) continue;
    std::cout << "The command: trainer " << command.name << " --help\n\n";
  }
  absl::StatusOr<std::string> text = HelpOn(options.topic, Reference(&host));
  if (!text.ok()) {
    // A plugin may know it that isn't built.
    host.BuildAll();
    text = HelpOn(options.topic, Reference(&host));
  }
  if (!text.ok()) return WithCode(text.status(), "config/unknown-field");
  std::cout << *text;
  return 0;
}

struct SchemaOptions {
  std::vector<std::string> plugin_path;
};

const RegisterFunction<HelpOptions> help("help", AddFlags, Help);

const RegisterFunction<SchemaOptions> schema(
    "schema",
    [](Flags& flags, SchemaOptions* options) {
      AddPluginPath(flags, &options->plugin_path);
    },
    [](const SchemaOptions& options) -> absl::StatusOr<int> {
      PluginHost host(AllFromCaller(options.plugin_path));
      host.BuildAll();
      std::cout << ConfigSchema(Reference(&host)).dump(2) << "\n";
      return 0;
    });

}  // namespace
}  // namespace capstan
