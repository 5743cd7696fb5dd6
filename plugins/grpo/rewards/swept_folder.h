// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_SWEPT_FOLDER_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_SWEPT_FOLDER_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/scratch_folder.h"
#include "base/subprocess.h"

namespace capstan::grpo {

// A scratch folder that is removed when this process ends, too, however it
// ends: a shell waits for that. It stays behind only if that shell is killed
// first, as where all of a job's processes are.
class SweptFolder {
 public:
  static absl::StatusOr<std::unique_ptr<SweptFolder>> Create();
  ~SweptFolder();
  SweptFolder(const SweptFolder&) = delete;
  SweptFolder& operator=(const SweptFolder&) = delete;

  const std::string& path() const { return folder_.path(); }

 private:
  SweptFolder() = default;

  const ScratchFolder folder_;
  // The shell reads from it, and sweeps at a line or at its end. Both ends stay
  // open here, so that writing to it never raises SIGPIPE.
  Pipe lives_;
  pid_t shell_ = -1;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_SWEPT_FOLDER_H_
