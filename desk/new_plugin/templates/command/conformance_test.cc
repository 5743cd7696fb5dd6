// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/command.h"

CAPSTAN_COMMAND_CONFORMANCE(
    MyPlugin, "myvendor/myplugin/libmyvendor_myplugin.so",
    "--text=myvendor/myplugin/testdata/lines.txt --most=3");
