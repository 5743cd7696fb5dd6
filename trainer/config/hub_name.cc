// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/hub_name.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace capstan {

std::string HubDownloadHint(absl::string_view name, absl::string_view setting) {
  const size_t slash = name.find('/');
  if (slash == absl::string_view::npos || slash == 0 ||
      slash + 1 == name.size() || name[0] == '.' || name[0] == '~' ||
      std::count(name.begin(), name.end(), '/') != 1) {
    return "";
  }
  // A local folder with a typo in its last component.
  std::error_code error;
  if (std::filesystem::exists(std::string(name.substr(0, slash)), error)) {
    return "";
  }
  const absl::string_view local = name.substr(slash + 1);
  return absl::StrCat(
      "; if it is a model on the Hub, download it first: hf download ", name,
      " --local-dir ", local, ", and say ", setting, "=", local);
}

}  // namespace capstan
