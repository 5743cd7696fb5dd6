// SPDX-License-Identifier: Apache-2.0
//
// Values as Python writes them, which the Language Model Evaluation Harness
// reads from templates' texts (ast.literal_eval).
#ifndef CAPSTAN_INFERENCE_EVALUATE_PYTHON_LITERAL_H_
#define CAPSTAN_INFERENCE_EVALUATE_PYTHON_LITERAL_H_

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan::evaluate {

// The value of a literal: texts (adjacent ones joined, without f"" and b""),
// numbers, True, False, None, and lists, tuples (as lists) and dictionaries of
// them, whose keys become texts. Unset if `text` is anything else.
absl::optional<nlohmann::ordered_json> PythonLiteral(absl::string_view text);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_PYTHON_LITERAL_H_
