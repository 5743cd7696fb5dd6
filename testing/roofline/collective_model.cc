// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/collective_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace capstan {
namespace {

// NCCL's latencies in microseconds: of the start, and of a hop over NVLink, PCI
// Express and the network.
struct Hops {
  double start, nvlink, pci, network;
};

// The protocols LL, LL128 and Simple.
constexpr Hops kRing[] = {
    {6.6, 0.6, 1.0, 2.7}, {14.0, 1.9, 2.5, 4.0}, {8.4, 3.4, 5.7, 14.0}};
constexpr Hops kTree[] = {
    {6.8, 0.6, 1.0, 5.0}, {14.0, 1.25, 1.9, 8.5}, {0.0, 28.0, 28.0, 28.0}};
constexpr double kMulticast = 23.0;
constexpr int kProtocols = std::size(kRing);

// Of a message by the protocol LL, bytes/s, within a host and among several.
constexpr double kMostByLl = 87.7e9;
constexpr double kMostByLlBetween = 19e9;

// What share of the links' bandwidth a ring's protocol leaves.
double RingShare(int protocol, const CollectiveCall& call) {
  const bool reduces = call.kind == CollectiveKind::kAllReduce;
  const bool alone = call.ranks == call.hosts;
  const double shares[] = {
      call.hosts > 1 || reduces ? 1.0 / 4 : 1.0 / 3,
      alone ? 0.7 : 0.92,  // 120 of 128 bytes; a lone GPU sends and receives
      1.0,
  };
  return shares[protocol];
}

// A tree's, which also leaves a part of the links idle.
double TreeShare(int protocol, const CollectiveCall& call) {
  const double shares[] = {1.0 / 3.8, call.hosts == 1 ? 7.0 / 9 : 120.0 / 128,
                           1.0};
  return 0.92 * shares[protocol];
}

// A rank's bandwidth in rings over all of its hosts' ports.
double BandwidthOf(const CollectiveCall& call, const CollectiveLinks& links) {
  if (call.hosts == 1) return links.inside;
  const double members = static_cast<double>(call.ranks) / call.hosts;
  if (call.kind == CollectiveKind::kAllToAll) {
    // Of what a rank sends to other ranks, this share leaves its host.
    const double leaves = (call.ranks - members) / (call.ranks - 1.0);
    return std::min(links.inside, links.network / leaves);
  }
  return std::min(links.inside, links.network * members);
}

}  // namespace

CollectiveTime TimeOf(const CollectiveCall& call, const CollectiveLinks& links,
                      double slower) {
  const bool reduces = call.kind == CollectiveKind::kAllReduce;
  const double n = call.ranks, hosts = call.hosts;
  const double bandwidth = BandwidthOf(call, links);
  const double most_by_ll = call.hosts == 1 ? kMostByLl : kMostByLlBetween;
  const double steps = reduces ? 2 * (n - 1) : n - 1;
  const double between = call.hosts == 1 ? 0 : reduces ? 2 * hosts : hosts - 1;
  CollectiveTime best;
  const auto consider = [&](double microseconds, double bytes, double rate) {
    const CollectiveTime time = {slower * microseconds * 1e-6, bytes / rate};
    if (best.seconds() == 0 || time.seconds() < best.seconds()) best = time;
  };
  for (int p = 0; p < kProtocols; ++p) {
    const auto limited = [&](double share) {
      const double rate = bandwidth * share;
      return p == 0 ? std::min(rate, most_by_ll) : rate;
    };
    const Hops& ring = kRing[p];
    // A ring over several hosts also waits for the network's posts.
    const double post = call.hosts == 1 ? 0 : p == 2 ? 3.0 : 1.0;
    const double inside = std::max(post, links.nvlink ? ring.nvlink : ring.pci);
    consider(ring.start + std::max(0.0, steps - between) * inside +
                 between * ring.network,
             call.sent, limited(RingShare(p, call)));
    if (!reduces) continue;
    const Hops& tree = kTree[p];
    consider(tree.start + 2 * ((n / hosts - 1) *
                                   (links.nvlink ? tree.nvlink : tree.pci) +
                               std::log2(hosts) * tree.network),
             call.sent * n / (n - 1), limited(TreeShare(p, call)));
  }
  if (reduces && call.hosts == 1 && links.multicast) {
    // The sum of all is sent once and received once.
    consider(kMulticast, call.sent * n / (2 * (n - 1)), bandwidth * 5 / 6);
  }
  return best;
}

}  // namespace capstan
