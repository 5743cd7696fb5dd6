// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CONFIG_HUB_NAME_H_
#define CAPSTAN_TRAINER_CONFIG_HUB_NAME_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// For the error about a model's folder that isn't there: if `name`, as it was
// written, may be a model on the Hugging Face Hub (OWNER/NAME), "; if it is a
// model on the Hub, download it first: hf download ..", with the `setting`
// ("--model_name") to give afterwards. Else "".
std::string HubDownloadHint(absl::string_view name, absl::string_view setting);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CONFIG_HUB_NAME_H_
