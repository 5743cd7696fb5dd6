// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/environment.h"
#include "tests/conformance/part.h"

CAPSTAN_PART_CONFORMANCE(MyPlugin, capstan::Environment,
                         "myvendor/myplugin/libmyvendor_myplugin.so",
                         "[plugin/myvendor.myplugin.Config] {}");
CAPSTAN_PART_CONFORMANCE(
    MyPluginOfFive, capstan::Environment,
    "myvendor/myplugin/libmyvendor_myplugin.so",
    "[plugin/myvendor.myplugin.Config] { length: 5 horizon: 20 }");
