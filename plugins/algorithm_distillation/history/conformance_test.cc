// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/dataset_reader.h"

namespace capstan::conformance {
namespace {

CAPSTAN_DATASET_READER_CONFORMANCE(
    Plain, "plugins/algorithm_distillation/history/libcapstan_ad_history.so",
    "[plugin/capstan.ad_history.Config] "
    "{ path: "
    "\"plugins/algorithm_distillation/darkroom/testdata/history_small.hdf5\" "
    "steps: 160 "
    "n_transit: 20 shuffle: true short_contexts: true }");
CAPSTAN_DATASET_READER_CONFORMANCE(
    Compressed,
    "plugins/algorithm_distillation/history/libcapstan_ad_history.so",
    "[plugin/capstan.ad_history.Config] "
    "{ path: "
    "\"plugins/algorithm_distillation/darkroom/testdata/history_small.hdf5\" "
    "steps: 160 "
    "mode: COMPRESSED region: 16 }");

}  // namespace
}  // namespace capstan::conformance
