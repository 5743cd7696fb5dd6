// SPDX-License-Identifier: Apache-2.0
//
// A trained model, ready to write: what generate, chat and merge have in
// common.
#ifndef CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_
#define CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {

// A model with its weights, what samples from it, and its tokenizer if any.
struct Generator {
  std::unique_ptr<PluginHost> host;
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<DatasetReader> data;  // owns the tokenizer of a checkpoint
  std::unique_ptr<Tokenizer> folder_tokenizer;
  absl::Status tokenizer_error;
  const Tokenizer* tokenizer = nullptr;
};

// A run's folder (runs/NAME, or one of its runs/NAME/TIME) stands for its final
// folder, else for its newest checkpoint; others for themselves.
std::string ModelFolder(const std::string& folder);

// `model` is a Hugging Face folder, a run's folder (ModelFolder), a checkpoint,
// or a PEFT folder, whose base is then where its adapter_config.json says.
// `adapter`, if not empty, is a PEFT folder to add. `overrides` are applied to
// the config that a checkpoint holds, or that is made for a folder:
// "objective.steps=64". The weights are bound in float32. Relative folders are
// the caller's.
absl::StatusOr<Generator> LoadGenerator(
    const std::string& model, const std::string& adapter,
    const std::vector<std::string>& plugin_path,
    const std::vector<std::string>& overrides = {});

// Text that comes in pieces of bytes, cut anywhere: a character is given when
// it is whole, and what is no text (or would move a terminal's cursor) as
// U+FFFD.
class TextStream {
 public:
  // What can be shown now.
  std::string Add(absl::string_view bytes);
  // The rest.
  std::string Finish();

 private:
  std::string rest_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_
