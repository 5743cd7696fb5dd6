// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PLUGIN_HOST_OLDER_PLUGINS_H_
#define CAPSTAN_TRAINER_PLUGIN_HOST_OLDER_PLUGINS_H_

#include <cstdint>

#include "plugins/sdk/plugin.h"

namespace capstan {

// `instance`, a `Base*` of `category` that a plugin of the older minor version
// `minor` has made, as this version's interface: what its virtual table lacks
// is answered by the interface's defaults, and what its structs lack is set.
// Takes and returns ownership; returns `instance` itself where the interface
// hasn't changed since.
//
// Whoever adds a virtual function to an interface that plugins implement makes
// sure that it has a class here, which forwards what that version had.
void* AdaptOlderPlugin(PluginCategory category, uint16_t minor, void* instance);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PLUGIN_HOST_OLDER_PLUGINS_H_
