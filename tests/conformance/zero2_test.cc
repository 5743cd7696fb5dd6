// SPDX-License-Identifier: Apache-2.0
//
// The toy has 1,300 trainable parameters: the default bucket holds them all.
#include "tests/conformance/strategy.h"

#define ZERO2(name, fields)                                                  \
  CAPSTAN_STRATEGY_CONFORMANCE(name, "strategies/zero2/libcapstan_zero2.so", \
                               "[plugin/capstan.zero2.Config] {" fields "}")

ZERO2(Zero2, "");
ZERO2(Zero2SmallBuckets, "reduce_bucket_size: 100 allgather_bucket_size: 150");
ZERO2(Zero2ReduceOnce, "reduce_bucket_size: 300 accumulation: REDUCE_ONCE");
ZERO2(Zero2Offload,
      "reduce_bucket_size: 300 offload_optimizer { device: CPU }");
ZERO2(Zero2NoOverlap, "reduce_bucket_size: 300 overlap_comm: false");
