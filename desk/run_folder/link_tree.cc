// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/link_tree.h"

#include <filesystem>
#include <system_error>

#include "base/files.h"
#include "base/status.h"

namespace capstan {

namespace fs = std::filesystem;

absl::Status LinkTree(const std::string& from, const std::string& to) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(fs::path(to).parent_path().string()));
  std::error_code error;
  fs::copy(from, to,
           fs::copy_options::recursive | fs::copy_options::create_hard_links,
           error);
  if (!error) return absl::OkStatus();
  fs::remove_all(to, error);
  fs::copy(from, to, fs::copy_options::recursive, error);
  return error ? WriteError(to, error.value()) : absl::OkStatus();
}

}  // namespace capstan
