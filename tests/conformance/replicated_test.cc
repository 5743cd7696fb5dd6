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
