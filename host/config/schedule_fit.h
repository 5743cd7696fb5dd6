// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_SCHEDULE_FIT_H_
#define CAPSTAN_HOST_CONFIG_SCHEDULE_FIT_H_

#include <cstdint>
#include <string>

#include "host/config/load_config.h"

namespace capstan {

// Scales schedule.warmup_steps and decay_steps with the length of the run that
// they were written for. Call Update after each file, and once after all --set.
class ScheduleFit {
 public:
  void Update(const LoadedConfig& loaded);
  void Apply(LoadedConfig* loaded) const;

 private:
  struct Part {
    std::string path;
    std::string place = {};
    int64_t written_for = 0;  // max_steps
  };
  Part warmup_ = {"schedule.warmup"};
  Part decay_ = {"schedule.decay"};
};

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_SCHEDULE_FIT_H_
