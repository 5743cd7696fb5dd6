// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTING_FAULTS_FAULTY_PLUGINS_H_
#define CAPSTAN_TESTING_FAULTS_FAULTY_PLUGINS_H_

#include "plugins/sdk/plugin.h"

namespace capstan {

// `instance`, a plugin of `category`, with a place to fail (fault_point.h)
// before each of its functions but those that only return constants. A virtual
// function that is added to an interface of the SDK is forwarded in
// faulty_plugins.cc.
//
// What a model and its objective, or an objective and its data, agree on
// between themselves (HistoryModel, HistorySource) isn't: such an objective
// rejects the wrapped model. Caches of keys and values aren't wrapped, as only
// their model knows them.
void* WithFaultPoints(PluginCategory category, void* instance);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_FAULTS_FAULTY_PLUGINS_H_
