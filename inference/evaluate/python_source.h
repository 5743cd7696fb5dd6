// SPDX-License-Identifier: Apache-2.0
//
// Which function of a Python file is meant, without running any of it.
#ifndef CAPSTAN_INFERENCE_EVALUATE_PYTHON_SOURCE_H_
#define CAPSTAN_INFERENCE_EVALUATE_PYTHON_SOURCE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace capstan::evaluate {

// A function with what its code reaches in its file.
struct PythonFunction {
  // The function that does the work: NAME's in NAME = partial(FUNCTION, ..).
  std::string name;
  // Of the code of the function and of all that it names in its file, but for
  // the constants: changes with everything that its effect can depend on. Blank
  // lines and lines of comments don't count.
  uint64_t digest = 0;
  // The same, gone on over the constants of its file that it reaches and the
  // arguments of partial(..); `digest` if there are none.
  uint64_t whole_digest = 0;
  // If it only calls another function of its file, `return f(docs, "a")` or
  // NAME = f("a"), that one's digest; else 0.
  uint64_t inner_digest = 0;
  // By name: the constants that it reaches (texts, numbers, lists and
  // dictionaries that are written out, in its file or in its own lines), the
  // arguments of partial(..), and as "arguments" those that it gives to the
  // inner function.
  nlohmann::ordered_json constants = nlohmann::ordered_json::object();
};

// `name` in the file at `path`. NOT_FOUND if the file has no such definition at
// the left margin.
absl::StatusOr<PythonFunction> FindPythonFunction(const std::string& path,
                                                  const std::string& name);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_PYTHON_SOURCE_H_
