// SPDX-License-Identifier: Apache-2.0
//
// How long NCCL takes for a collective: the costs by which NCCL itself chooses
// an algorithm and a protocol (ncclTopoTuneModel and ncclTopoGetAlgoTime in
// src/graph/tuning.cc of NVIDIA's NCCL, BSD licence): a latency for each hop,
// and the bytes over a bandwidth. The cheapest of ring and tree, each with the
// protocols LL, LL128 and Simple, and of NVLink's multicast, is taken.
#ifndef CAPSTAN_TESTING_ROOFLINE_COLLECTIVE_MODEL_H_
#define CAPSTAN_TESTING_ROOFLINE_COLLECTIVE_MODEL_H_

namespace capstan {

enum class CollectiveKind { kAllReduce, kAllToAll, kOther };

struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kOther;
  double sent = 0;  // bytes that each rank sends in a ring
  int ranks = 2;
  int hosts = 1;  // that they are on, equally many on each
};

// What collectives reach of the links, in bytes/s in one direction.
struct CollectiveLinks {
  double inside = 0;       // from a GPU to the others of its host
  double network = 0;      // of a GPU's own port to other hosts
  bool nvlink = true;      // within a host; else PCI Express
  bool multicast = false;  // NVLink's switches sum (Hopper and later)
};

struct CollectiveTime {
  double latency = 0;  // seconds that don't depend on the size
  double moving = 0;
  double seconds() const { return latency + moving; }
};

// `slower`: by what factor latencies are longer than NCCL's.
CollectiveTime TimeOf(const CollectiveCall& call, const CollectiveLinks& links,
                      double slower);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_COLLECTIVE_MODEL_H_
