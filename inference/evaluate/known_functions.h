// SPDX-License-Identifier: Apache-2.0
//
// Python functions that tasks of the Language Model Evaluation Harness name
// (`!function utils.process_docs`), as far as they are known here. None is run:
// a function is recognised by a digest of its code and of all that it reaches
// in its file (python_source.h), and has here a form with the same effect. Of
// constants there the form takes the values, or they are in the digest, too.
#ifndef CAPSTAN_INFERENCE_EVALUATE_KNOWN_FUNCTIONS_H_
#define CAPSTAN_INFERENCE_EVALUATE_KNOWN_FUNCTIONS_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::evaluate {

// A function's name, "utils.process_docs", and the folder of the task's file.
struct FunctionName {
  std::string name;
  std::string folder;
};

// What doc_to_text, doc_to_target, doc_to_choice or process_docs does. Of
// process_docs it gives an object, columns that are new or other; null: the row
// is left out; a list of rows in its place. Of the others: the value.
// INVALID_ARGUMENT if the row isn't as the function expects. Thread-safe.
using RowFunction = std::function<absl::StatusOr<nlohmann::ordered_json>(
    const nlohmann::ordered_json& row)>;

// What a model said to a row, for process_results.
struct RowAnswer {
  std::vector<double> log_likelihoods;  // of the choices, or of the whole text
  std::vector<bool> greedy;
  std::string text;  // after the filters
};

// What process_results does: the metrics' values by name, in the harness's
// order.
using ResultFunction = absl::StatusOr<nlohmann::ordered_json> (*)(
    const nlohmann::ordered_json& row, const RowAnswer& answer);

// Each is UNIMPLEMENTED, "is the Python function ..", unless the function is
// known for that purpose; other errors are about its file.
absl::StatusOr<RowFunction> FindRowFunction(const FunctionName& function);
absl::StatusOr<ResultFunction> FindResultFunction(const FunctionName& function);
// The name of the aggregation (aggregate.h) that the function is.
absl::StatusOr<std::string> FindAggregation(const FunctionName& function);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_KNOWN_FUNCTIONS_H_
