// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/verify.h"

#include <memory>

#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"

namespace capstan {

absl::Status CheckHeaders(const std::string& folder, const Manifest& manifest) {
  return CatchAll([&]() -> absl::Status {
    for (const ManifestFile& file : manifest.files) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<StateFile> opened,
                               StateFile::Open(folder, file));
      for (const ManifestRange& range : file.ranges) {
        CAPSTAN_RETURN_IF_ERROR(opened->Check(range));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status VerifyCheckpoint(const std::string& folder) {
  return CatchAll([&]() -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
    for (const ManifestFile& file : manifest.files) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<StateFile> opened,
                               StateFile::Open(folder, file));
      for (const ManifestRange& range : file.ranges) {
        CAPSTAN_RETURN_IF_ERROR(opened->Check(range));
        CAPSTAN_RETURN_IF_ERROR(opened->Verify(range));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace capstan
