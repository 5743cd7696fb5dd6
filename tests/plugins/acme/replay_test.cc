// SPDX-License-Identifier: Apache-2.0
//
// An objective with state and rollouts, before any run.
#include "tests/conformance/objective.h"

CAPSTAN_OBJECTIVE_CONFORMANCE(Greedy, "tests/plugins/acme/libacme_replay.so",
                              "[plugin/acme.replay.Config] { new_tokens: 4 }");
CAPSTAN_OBJECTIVE_CONFORMANCE(Sampled, "tests/plugins/acme/libacme_replay.so",
                              "[plugin/acme.replay.Config] { new_tokens: 5 "
                              "sampled: true own_curve: 0.5 }");
