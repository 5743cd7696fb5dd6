// SPDX-License-Identifier: Apache-2.0
//
// The README.md in a trained model's folder.
#ifndef CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_
#define CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/metrics/reporter.h"
#include "trainer/run_config.pb.h"

namespace capstan {

struct ModelCardFacts {
  const RunConfig* config = nullptr;
  std::string base_model;  // a folder; "": from scratch
  // The model config's field that names it; "": none.
  std::string base_model_field;
  bool adapter = false;
  // Whether it is a text model, and a left-to-right one like transformers'
  // AutoModelForCausalLM.
  bool texts = true;
  bool causal = true;
  bool tokenizer = false;  // whether the folder has one
  // The transformers class that loads the model with custom code in the folder
  // (config.json's auto_map); "": none.
  std::string auto_class;
  std::string output_dir;  // contains metrics.jsonl and the pictures
  // Names of drawn measurements: "return" is OUTPUT/return.svg.
  std::vector<std::string> pictures;
  RunSummary run;  // without speed and memory
  int64_t global_batch_size = 1;
  int64_t training_samples = 0;
  int64_t trained_parameters = 0;
  int64_t frozen_parameters = 0;
  double learning_rate = 0.0;
};

// README.md, headed by the metadata that model hubs read; loss_curve.svg, if
// there is a curve; and the other pictures, by name. Contains nothing specific
// to this machine: folders appear by name, and commands are meant to be run
// inside the folder.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelCard(
    const ModelCardFacts& facts);

// What the model starts from, given by the field of its config with the option
// `base_model` (plugins/sdk/options.proto) or, for plugins of minor versions
// that lack it, by the field `pretrained`.
struct BaseModel {
  std::string field;   // "": no such field
  std::string folder;  // "": from scratch
};
BaseModel BaseModelOf(const RunConfig& config, int api_minor);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_
