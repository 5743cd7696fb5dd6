// SPDX-License-Identifier: Apache-2.0
//
// Compares what was exported with what it was made of.
#ifndef CAPSTAN_DESK_EXPORT_PROVE_H_
#define CAPSTAN_DESK_EXPORT_PROVE_H_

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "desk/export/llama_model.h"
#include "inference/load/generator.h"
#include "plugins/sdk/model.h"

namespace capstan {

// What is told at the end: of each name a text for people and, for programs, a
// fact.
struct ExportReport {
  std::vector<std::pair<std::string, std::string>> rows;
  nlohmann::ordered_json facts;

  void Tell(const std::string& name, const std::string& text,
            nlohmann::ordered_json fact);
  void Note(const std::string& text);
  void NotCompared(const std::string& name, absl::string_view why);
};

// Why a model isn't compared for which FitsInFloat32 is false.
constexpr char kTooLarge[] =
    "the model doesn't fit this machine's memory in float32";
bool FitsInFloat32(const Model& model);

// Tells under `name` whether logits are equal, or by how much they differ.
// DATA_LOSS if that is more than `share` of the largest logit, or `who` has
// others at all.
absl::Status CompareLogits(const at::Tensor& wanted, const at::Tensor& got,
                           double share, const std::string& name,
                           const std::string& who, ExportReport* report);

// Reads `path`, which WriteGguf has written of generator.model in the type
// `file_type`: with our own reader, which compares each value and runs the
// model with the file's weights on `text` ("": some of ours), and with
// llama.cpp where that is. Leaves the file's weights bound to the model. Tells
// what it found; an error says what isn't as it must be.
absl::Status ProveGguf(const std::string& path, const std::string& file_type,
                       const Generator& generator, const LlamaModel& written,
                       const std::string& text, ExportReport* report);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_PROVE_H_
