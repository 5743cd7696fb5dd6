// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARK_KEY_TO_DOOR_DARK_KEY_TO_DOOR_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARK_KEY_TO_DOOR_DARK_KEY_TO_DOOR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/dark_key_to_door/dark_key_to_door.pb.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/environment.h"

namespace capstan::dark_key_to_door {

struct KeyAndDoor {
  darkroom::Cell key;
  darkroom::Cell door;
};

class DarkKeyToDoor final : public Environment {
 public:
  static absl::StatusOr<std::unique_ptr<DarkKeyToDoor>> Create(
      const Config& config);

  const KeyAndDoor& task(int index) const { return tasks_[index]; }
  darkroom::Cell start() const;

  EnvironmentSpec spec() const override { return darkroom::SpecOf(room_); }
  int tasks() const override { return static_cast<int>(tasks_.size()); }
  std::string TaskName(int task) const override;
  double OptimalReturn(int task) const override;
  std::unique_ptr<Episodes> NewEpisodes(
      const std::vector<int>& tasks) const override;

 private:
  DarkKeyToDoor(const darkroom::Room& room, std::vector<KeyAndDoor> tasks)
      : room_(room), tasks_(std::move(tasks)) {}

  const darkroom::Room room_;
  const std::vector<KeyAndDoor> tasks_;
};

}  // namespace capstan::dark_key_to_door

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARK_KEY_TO_DOOR_DARK_KEY_TO_DOOR_H_
