// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy.h"

#define FSDP(name, fields)                                                 \
  CAPSTAN_STRATEGY_CONFORMANCE(name, "strategies/fsdp/libcapstan_fsdp.so", \
                               "[plugin/capstan.fsdp.Config] {" fields "}")

FSDP(Fsdp, "");
FSDP(FsdpKeepsUnits, "reshard_after_forward: false");
FSDP(FsdpNoPrefetch, "prefetch: 0");
FSDP(FsdpPrefetch3, "prefetch: 3");
FSDP(FsdpOffload, "cpu_offload: true");
FSDP(FsdpGroupsOf2, "shard_group_size: 2");
FSDP(FsdpReduceOnce, "accumulation: REDUCE_ONCE");
FSDP(FsdpGroupsOf2KeepUnitsReduceOnce,
     "shard_group_size: 2 reshard_after_forward: false "
     "accumulation: REDUCE_ONCE");
