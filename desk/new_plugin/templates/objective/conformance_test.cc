// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/objective.h"

// Each line runs the whole suite on a config.
CAPSTAN_OBJECTIVE_CONFORMANCE(MyPlugin,
                              "myvendor/myplugin/libmyvendor_myplugin.so",
                              "[plugin/myvendor.myplugin.Config] {}");
CAPSTAN_OBJECTIVE_CONFORMANCE(
    MyPluginWithContext, "myvendor/myplugin/libmyvendor_myplugin.so",
    "[plugin/myvendor.myplugin.Config] { context: 5 }");
