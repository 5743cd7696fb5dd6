// SPDX-License-Identifier: Apache-2.0
//
// Strategies that hold the whole model on each rank.
#include "tests/conformance/strategy.h"

CAPSTAN_STRATEGY_CONFORMANCE(Single, "strategies/single/libcapstan_single.so",
                             "[plugin/capstan.single.Config] {}");

CAPSTAN_STRATEGY_CONFORMANCE(Ddp, "strategies/ddp/libcapstan_ddp.so",
                             "[plugin/capstan.ddp.Config] {}");

// 1 KiB: almost every parameter has its own bucket.
CAPSTAN_STRATEGY_CONFORMANCE(DdpManyBuckets, "strategies/ddp/libcapstan_ddp.so",
                             "[plugin/capstan.ddp.Config] { "
                             "bucket_cap_mib: 0.001 first_bucket_mib: 0.001 }");

// Synchronises in the midst of a run and after each step; saves are in the
// midst of a round. The toy learns fast, so that a few local steps are far.
#define DILOCO(name, fields)                          \
  CAPSTAN_STRATEGY_CONFORMANCE(                       \
      name, "strategies/diloco/libcapstan_diloco.so", \
      "[plugin/capstan.diloco.Config] { loss_bound: 0.2 " fields "}")

DILOCO(DiLoCo, "local_steps: 2 ");
DILOCO(DiLoCoInBytes, "local_steps: 2 deltas: INT8 ");
DILOCO(DiLoCoMeans, "local_steps: 1 outer_learning_rate: 1 outer_momentum: 0 ");
