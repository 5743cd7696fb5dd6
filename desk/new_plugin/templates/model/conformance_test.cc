// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/model.h"

// Each line runs the whole suite on a config.
CAPSTAN_MODEL_CONFORMANCE(MyPlugin, "myvendor/myplugin/libmyvendor_myplugin.so",
                          "[plugin/myvendor.myplugin.Config] { vocab_size: 11 "
                          "hidden_size: 5 max_position_embeddings: 8 }");
