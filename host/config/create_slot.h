// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_CREATE_SLOT_H_
#define CAPSTAN_HOST_CONFIG_CREATE_SLOT_H_

#include <google/protobuf/any.pb.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "host/config/field_names.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"

namespace capstan {

// Creates the plugin in a slot, a path of CategoryOfSlot; errors give its
// location in the config.
template <typename Base>
absl::StatusOr<std::unique_ptr<Base>> CreateSlot(
    const LoadedConfig& loaded, const std::string& slot,
    const google::protobuf::Any& any, PluginHost& host) {
  const PluginCategory category = *CategoryOfSlot(slot);
  if (any.type_url().empty()) {
    return loaded.Locate(
        WithCode(absl::InvalidArgumentError(absl::StrCat(
                     "no ", CategoryName(category), " is set; write ", slot,
                     " { [plugin/PACKAGE.Config] { .. } } (`trainer plugins` "
                     "lists the ",
                     "packages)")),
                 "config/missing"),
        slot);
  }
  absl::StatusOr<std::unique_ptr<Base>> made =
      host.Create<Base>(TypeOf(any), category, any.value());
  if (made.ok()) return made;
  return loaded.Locate(category == PluginCategory::kModel
                           ? WithHubHint(made.status(), loaded, slot)
                           : made.status(),
                       slot);
}

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_CREATE_SLOT_H_
