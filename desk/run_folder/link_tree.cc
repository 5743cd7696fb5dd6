// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/link_tree.h"

#include <filesystem>
#include <system_error>

#include "base/files.h"
#include "base/status.h"

namespace capstan {

namespace fs = std::filesystem;

// Not fs::copy, which gives new folders the old ones' modes: nothing could be
// made in, or removed from, those of a run that is read-only.
absl::Status LinkTree(const std::string& from, const std::string& to) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(to));
  std::error_code error;
  for (fs::recursive_directory_iterator at(from, error), end;
       !error && at != end; at.increment(error)) {
    const std::string made =
        (fs::path(to) / at->path().lexically_relative(from)).string();
    std::error_code failed;
    if (at->is_directory(failed)) {
      CAPSTAN_RETURN_IF_ERROR(MakeFolder(made));
      continue;
    }
    fs::create_hard_link(at->path(), made, failed);
    if (failed) fs::copy_file(at->path(), made, failed);
    if (failed) return WriteError(made, failed.value());
  }
  return error ? WriteError(to, error.value()) : absl::OkStatus();
}

}  // namespace capstan
