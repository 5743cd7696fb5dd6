// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/gpu_query.h"

#include <stdio.h>
#include <stdlib.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace capstan {

std::vector<std::string> QueryGpus(const std::string& field) {
  std::string command = absl::StrCat("nvidia-smi --query-gpu=", field,
                                     " --format=csv,noheader,nounits");
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  const absl::string_view safe = visible == nullptr ? "" : visible;
  if (!safe.empty() &&
      safe.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz"
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ-,") ==
          absl::string_view::npos) {
    absl::StrAppend(&command, " --id=", safe);
  }
  absl::StrAppend(&command, " 2>/dev/null");
  FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return {};
  std::vector<std::string> values;
  char line[256];
  while (fgets(line, sizeof(line), pipe) != nullptr) {
    values.emplace_back(absl::StripAsciiWhitespace(line));
  }
  if (pclose(pipe) != 0) return {};
  return values;
}

}  // namespace capstan
