// SPDX-License-Identifier: Apache-2.0
#include "host/config/create_slot.h"

#include <filesystem>
#include <system_error>

#include "absl/types/optional.h"
#include "base/status.h"

namespace capstan {

absl::Status WithHubHint(const absl::Status& status, const LoadedConfig& loaded,
                         const std::string& slot) {
  const absl::optional<std::string> field = FieldOf(status);
  if (!field.has_value()) return status;
  const std::string path = absl::StrCat(slot, ".", *field);
  const auto found = loaded.paths.find(path);
  std::error_code error;
  if (found == loaded.paths.end() ||
      std::filesystem::exists(found->second.absolute, error)) {
    return status;
  }
  const std::string hint =
      HubDownloadHint(found->second.written, absl::StrCat("--set ", path));
  return FieldError(*field, absl::StrCat(status.message(), hint));
}

}  // namespace capstan
