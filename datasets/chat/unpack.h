// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_UNPACK_H_
#define CAPSTAN_DATASETS_CHAT_UNPACK_H_

#include <string>

#include "absl/status/status.h"
#include "base/output_file.h"

namespace capstan {
namespace chat {

// Write what is packed in the file `from`, all its members or frames one behind
// the other, into `to`. Errors name the file: broken, cut off,
// empty, no room.
absl::Status UnpackGzip(const std::string& from, HiddenFile* to);
absl::Status UnpackZstd(const std::string& from, HiddenFile* to);

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_UNPACK_H_
