// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/dataset_reader.h"

CAPSTAN_DATASET_READER_CONFORMANCE(
    LladaWindows, "plugins/llada/windows/libcapstan_llada_windows.so",
    "[plugin/capstan.llada_windows.Config] "
    "{ path: \"tests/testdata/corpus.txt\" sequence_length: 64 shuffle: true "
    "validation_fraction: 0.1 }");
CAPSTAN_DATASET_READER_CONFORMANCE(
    LladaWindowsOfFiles, "plugins/llada/windows/libcapstan_llada_windows.so",
    "[plugin/capstan.llada_windows.Config] "
    "{ folder: \"tests/golden/testdata/llada_npy\" }");
