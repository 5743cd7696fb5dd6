// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_SWEPT_FOLDER_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_SWEPT_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/scratch_folder.h"
#include "plugins/grpo/rewards/end_guard.h"

namespace capstan::grpo {

// A scratch folder that is removed when this process ends, too, however it
// ends.
class SweptFolder {
 public:
  static absl::StatusOr<std::unique_ptr<SweptFolder>> Create();
  SweptFolder(const SweptFolder&) = delete;
  SweptFolder& operator=(const SweptFolder&) = delete;

  const std::string& path() const { return folder_.path(); }

 private:
  SweptFolder() = default;

  std::unique_ptr<EndGuard> guard_;  // until the folder is gone
  const ScratchFolder folder_;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_SWEPT_FOLDER_H_
