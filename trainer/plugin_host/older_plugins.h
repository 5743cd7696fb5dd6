// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PLUGIN_HOST_OLDER_PLUGINS_H_
#define CAPSTAN_TRAINER_PLUGIN_HOST_OLDER_PLUGINS_H_

#include <cstdint>

#include "plugins/sdk/plugin.h"

namespace capstan {

// Adapts `instance`, a `Base*` of `category` made by a plugin of the older
// minor version `minor`, to the current interface: missing virtual functions
// get the interface's defaults, missing struct fields are set, and a strategy
// that shards refuses an optimizer that needs whole matrices. Takes and returns
// ownership; returns `instance` itself if the interface hasn't changed since.
//
// Whoever adds a virtual function to an interface that plugins implement makes
// sure that it has a class here that forwards what the older version had.
void* AdaptOlderPlugin(PluginCategory category, uint16_t minor, void* instance);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PLUGIN_HOST_OLDER_PLUGINS_H_
