// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/optimizer.h"

CAPSTAN_OPTIMIZER_CONFORMANCE(
    MyPlugin, "myvendor/myplugin/libmyvendor_myplugin.so",
    "[plugin/myvendor.myplugin.Config] { learning_rate: 1e-3 }");
CAPSTAN_OPTIMIZER_CONFORMANCE(
    MyPluginWithDecay, "myvendor/myplugin/libmyvendor_myplugin.so",
    "[plugin/myvendor.myplugin.Config] { learning_rate: 1e-3 beta1: 0.95 "
    "beta2: 0.98 weight_decay: 0.1 }");
