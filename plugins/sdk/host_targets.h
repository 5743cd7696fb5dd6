// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_HOST_TARGETS_H_
#define CAPSTAN_PLUGINS_SDK_HOST_TARGETS_H_

#include "plugins/sdk/token_model.h"

namespace capstan {

// A TokenModel also derives from this if TokenTargets, and CrossEntropyRows'
// targets, may be on the CPU for a model on a GPU, too; found by dynamic_cast.
// It then knows without waiting for the device which positions have no target,
// and its head leaves them out.
class HostTargets {
 public:
  virtual ~HostTargets();
};

// Whether the model takes them. Not in runs with train.cuda_graphs: each number
// of rows would be another recording.
bool TakesHostTargets(const TokenModel& model);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_HOST_TARGETS_H_
