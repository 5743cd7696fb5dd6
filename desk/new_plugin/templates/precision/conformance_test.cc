// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/precision.h"

CAPSTAN_PRECISION_CONFORMANCE(MyPlugin,
                              "myvendor/myplugin/libmyvendor_myplugin.so",
                              "[plugin/myvendor.myplugin.Config] {}");
CAPSTAN_PRECISION_CONFORMANCE(
    MyPluginNarrow, "myvendor/myplugin/libmyvendor_myplugin.so",
    "[plugin/myvendor.myplugin.Config] { narrow_sums: true }");
