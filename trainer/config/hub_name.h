// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CONFIG_HUB_NAME_H_
#define CAPSTAN_TRAINER_CONFIG_HUB_NAME_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// A hint for the error about a missing model folder. If `name`, as written,
// could be a Hugging Face Hub model (OWNER/NAME): "; if it is a model on the
// Hub, download it first: hf download ..", with the `setting` ("--model_name")
// to use afterwards. Else "".
std::string HubDownloadHint(absl::string_view name, absl::string_view setting);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CONFIG_HUB_NAME_H_
