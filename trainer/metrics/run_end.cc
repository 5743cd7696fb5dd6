// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/run_end.h"

namespace capstan {

std::vector<std::function<absl::Status(const std::string& output_dir)>>&
AtRunEnd() {
  static auto* const functions = new std::vector<
      std::function<absl::Status(const std::string& output_dir)>>;
  return *functions;
}

}  // namespace capstan
