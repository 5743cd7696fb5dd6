// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_TESTING_WITHOUT_TIMES_H_
#define CAPSTAN_TESTS_TESTING_WITHOUT_TIMES_H_

#include <nlohmann/json.hpp>
#include <vector>

namespace capstan {

// Lines of metrics.jsonl without what a clock says.
inline std::vector<nlohmann::json> WithoutTimes(
    std::vector<nlohmann::json> lines) {
  for (nlohmann::json& line : lines) {
    for (const char* key : {"time", "step_seconds", "tokens_per_second",
                            "communication_seconds", "exposed_seconds"}) {
      line.erase(key);
    }
  }
  return lines;
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TESTING_WITHOUT_TIMES_H_
