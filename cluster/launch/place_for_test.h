// SPDX-License-Identifier: Apache-2.0
//
// FindPlace under an environment that a test replays.
#ifndef CAPSTAN_CLUSTER_LAUNCH_PLACE_FOR_TEST_H_
#define CAPSTAN_CLUSTER_LAUNCH_PLACE_FOR_TEST_H_

#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "cluster/launch/place.h"

namespace capstan {

using Environment = std::map<std::string, std::string>;

// While alive, the process has these variables and no others.
class ReplayedEnvironment {
 public:
  explicit ReplayedEnvironment(const Environment& environment) {
    for (char** text = environ; text != nullptr && *text != nullptr; ++text) {
      before_.push_back(*text);
    }
    clearenv();
    for (const auto& [name, value] : environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~ReplayedEnvironment() {
    clearenv();
    for (const std::string& text : before_) {
      const size_t equals = text.find('=');
      setenv(text.substr(0, equals).c_str(), text.c_str() + equals + 1, 1);
    }
  }
  ReplayedEnvironment(const ReplayedEnvironment&) = delete;
  ReplayedEnvironment& operator=(const ReplayedEnvironment&) = delete;

 private:
  std::vector<std::string> before_;
};

inline absl::StatusOr<Place> PlaceIn(const Environment& environment,
                                     const LaunchSettings& settings = {},
                                     int gpus = 0, int gpus_on_machine = 0) {
  const ReplayedEnvironment replayed(environment);
  return FindPlace(settings, gpus, gpus_on_machine);
}

// "launch.FIELD MESSAGE" for a FieldError, else the message; "" if OK.
inline std::string ErrorOf(const absl::Status& status) {
  const absl::optional<std::string> field = FieldOf(status);
  return absl::StrCat(field.has_value() ? "launch." + *field + " " : "",
                      std::string(status.message()));
}

inline std::string ErrorIn(const Environment& environment,
                           const LaunchSettings& settings = {}, int gpus = 0) {
  return ErrorOf(PlaceIn(environment, settings, gpus).status());
}

// `environment` with changes; "" removes.
inline Environment With(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      environment.erase(name);
    } else {
      environment[name] = value;
    }
  }
  return environment;
}

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_PLACE_FOR_TEST_H_
