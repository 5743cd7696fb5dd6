// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PLUGIN_FOR_TEST_H_
#define CAPSTAN_PLUGINS_SDK_PLUGIN_FOR_TEST_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "plugins/sdk/plugin.h"

extern "C" const capstan::PluginDescriptor capstan_plugin_v1;

namespace capstan {

// Creates the plugin that is linked into the test, as the core does.
template <typename Base, typename Config>
absl::StatusOr<std::unique_ptr<Base>> MakePlugin(const Config& config) {
  void* instance = nullptr;
  CAPSTAN_RETURN_IF_ERROR(
      capstan_plugin_v1.create(config.SerializeAsString(), &instance));
  return std::unique_ptr<Base>(static_cast<Base*>(instance));
}

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PLUGIN_FOR_TEST_H_
