// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy.h"

CAPSTAN_STRATEGY_CONFORMANCE(MyPlugin,
                             "myvendor/myplugin/libmyvendor_myplugin.so",
                             "[plugin/myvendor.myplugin.Config] {}");
