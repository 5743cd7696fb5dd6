// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_DOCUMENTS_H_
#define CAPSTAN_INFERENCE_EVALUATE_DOCUMENTS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/evaluate/known_functions.h"

namespace capstan::evaluate {

// A row, and where it is: "arc.jsonl:3".
struct Document {
  nlohmann::ordered_json row;
  std::string place;
};

// Rows of a .jsonl (one object a line), or a .json (a list of objects, or
// {"data": [..]}). INVALID_ARGUMENT names the place.
absl::StatusOr<std::vector<Document>> ReadDocuments(const std::string& path);

// What process_docs makes of the rows. An error names the place.
absl::StatusOr<std::vector<Document>> Processed(
    const std::vector<Document>& documents, const RowFunction& process_docs);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_DOCUMENTS_H_
