// SPDX-License-Identifier: Apache-2.0
//
// The plugin before any run: what the trainer expects of every optimizer.
#include "tests/conformance/optimizer.h"

CAPSTAN_OPTIMIZER_CONFORMANCE(SignSgd, "tests/plugins/acme/libacme_signsgd.so",
                              "[plugin/acme.signsgd.Config] "
                              "{ learning_rate: 1e-2 }");
