// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/dataset_reader.h"

CAPSTAN_DATASET_READER_CONFORMANCE(
    MyPlugin, "myvendor/myplugin/libmyvendor_myplugin.so",
    "[plugin/myvendor.myplugin.Config] { "
    "path: \"myvendor/myplugin/testdata/lines.txt\" sequence_length: 32 }");
