// SPDX-License-Identifier: Apache-2.0
//
// A strategy whose replicas train apart.
#include "tests/conformance/strategy.h"

// Synchronises in the midst of a run and after each step; saves are in the
// midst of a round. The toy learns fast, so that a few local steps are far.
#define DILOCO(name, fields)                          \
  CAPSTAN_STRATEGY_CONFORMANCE(                       \
      name, "strategies/diloco/libcapstan_diloco.so", \
      "[plugin/capstan.diloco.Config] { loss_bound: 0.2 " fields "}")

DILOCO(DiLoCo, "local_steps: 2 ");
DILOCO(DiLoCoInBytes, "local_steps: 2 deltas: INT8 ");
DILOCO(DiLoCoMeans, "local_steps: 1 outer_learning_rate: 1 outer_momentum: 0 ");
// Saves and exports are in the midst of an exchange.
DILOCO(DiLoCoStreamed, "local_steps: 2 parts: 2 overlap_steps: 1 ");
// Of capstan.fsdp.
DILOCO(DiLoCoOfSites, "local_steps: 2 site_ranks: 2 ");
DILOCO(DiLoCoOfZero2Streamed,
       "local_steps: 2 overlap_steps: 1 deltas: INT8 site_ranks: 2 "
       "inner { [plugin/capstan.zero2.Config] {} }");
