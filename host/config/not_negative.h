// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_NOT_NEGATIVE_H_
#define CAPSTAN_HOST_CONFIG_NOT_NEGATIVE_H_

#include <google/protobuf/message.h>

#include "absl/status/status.h"

namespace capstan {

// A FieldError of the first field with the option not_negative
// (plugins/sdk/options.proto) that is below 0 or NaN, in `config`, its messages
// and loaded plugins' configs: "train.save_every: must not be negative, is -1".
absl::Status CheckNotNegative(const google::protobuf::Message& config);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_NOT_NEGATIVE_H_
