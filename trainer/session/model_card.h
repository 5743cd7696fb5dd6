// SPDX-License-Identifier: Apache-2.0
//
// The README.md of a trained model's folder.
#ifndef CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_
#define CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/metrics/reporter.h"
#include "trainer/run_config.pb.h"

namespace capstan {

struct ModelCardFacts {
  const RunConfig* config = nullptr;
  std::string base_model;  // a folder; "": from scratch
  // The field of the model plugin's config that names it; "": none does.
  std::string base_model_field;
  bool adapter = false;
  // Whether it is a model of texts, and one that goes from left to right, as
  // transformers' AutoModelForCausalLM are.
  bool texts = true;
  bool causal = true;
  bool tokenizer = false;  // whether the folder has one
  // The class of transformers that opens the model with code of its own, which
  // lies in the folder (config.json's auto_map); "": none.
  std::string auto_class;
  std::string output_dir;  // for metrics.jsonl and the pictures
  // Names of what was measured and drawn: "return" is OUTPUT/return.svg.
  std::vector<std::string> pictures;
  RunSummary run;  // without its speed and memory
  int64_t global_batch_size = 1;
  int64_t training_samples = 0;
  int64_t trained_parameters = 0;
  int64_t frozen_parameters = 0;
  double learning_rate = 0.0;
};

// README.md, with the metadata that model hubs read at its head,
// loss_curve.svg, if there is a curve, and the other pictures, by name. Nothing
// in it is of this machine: folders go by their names, and its commands are for
// whoever has the folder and is in it.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelCard(
    const ModelCardFacts& facts);

// What the model starts from, by the field of its plugin's config that has the
// option `base_model` (plugins/sdk/options.proto).
struct BaseModel {
  std::string field;   // "": the config has no such field
  std::string folder;  // "": from scratch
};
BaseModel BaseModelOf(const RunConfig& config);

// `config` without what only this machine knows, for texts that leave it: of
// each file and folder (fields with the option `path`) the last name, of a
// model in Hugging Face's cache its name at the hub; no output_dir.
RunConfig PortableConfig(const RunConfig& config);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_
