// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_BASE_MODEL_H_
#define CAPSTAN_HOST_CONFIG_BASE_MODEL_H_

#include <string>

#include "host/config/run_config.pb.h"

namespace capstan {

// What the model starts from, given by the field of its config with the option
// `base_model` (plugins/sdk/options.proto).
struct BaseModel {
  std::string field;   // "": no such field
  std::string folder;  // "": from scratch
};
BaseModel BaseModelOf(const RunConfig& config);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_BASE_MODEL_H_
