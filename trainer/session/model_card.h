// SPDX-License-Identifier: Apache-2.0
//
// Writes the README.md of a trained model's folder.
#ifndef CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_
#define CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "host/config/run_config.pb.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

struct ModelCardFacts {
  const RunConfig* config = nullptr;
  std::string base_model;  // a folder; "": from scratch
  // The model config's field that names it; "" if there is none.
  std::string base_model_field;
  bool adapter = false;
  // The rows that the base model's embedding needs for an adapter with tokens
  // of its own; 0 without such tokens.
  int64_t rows = 0;
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
  std::string receipts;  // the end of its chain (receipt_chain.h); "": none
};

// Returns the files by name: README.md, headed by the metadata that model hubs
// read; loss_curve.svg, if there is a curve; and the other pictures. They
// contain nothing specific to this machine: folders appear by name, and
// commands are meant to be run inside the folder.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelCard(
    const ModelCardFacts& facts);

// Returns `config` without what is specific to this machine, for publication:
// reduces files and folders (fields with the option `path`) to their last
// component and a model in Hugging Face's cache to its hub name, and removes
// output_dir.
RunConfig PortableConfig(const RunConfig& config);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MODEL_CARD_H_
