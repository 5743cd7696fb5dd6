// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_HOSTS_HOST_LAYOUT_H_
#define CAPSTAN_CLUSTER_COMM_HOSTS_HOST_LAYOUT_H_

#include <vector>

namespace capstan {

// Consecutive ranks [begin, end) on one host; the ranks next to them are on
// others. Sums pass through the segments in this order.
struct HostSegment {
  int host;
  int begin;
  int end;
  int size() const { return end - begin; }
  bool Contains(int rank) const { return begin <= rank && rank < end; }
};

// Which hosts the ranks of a group are on, as seen by one of them. Hosts are
// numbered in the order of their lowest ranks, which lead them.
class HostLayout {
 public:
  // hosts[r] is any number that is equal for the ranks of one host.
  HostLayout(int rank, const std::vector<int>& hosts);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(begins_.size()) - 1; }
  // This rank's.
  int host() const { return host_of_[rank_]; }
  int host_of(int rank) const { return host_of_[rank]; }
  int leader(int host) const { return by_position_[begins_[host]]; }
  bool is_leader() const { return leader(host()) == rank_; }

  // The rank's position in the order of hosts, then ranks, in which the ranks
  // of a host have the positions [begin(host), end(host)). Equal to the rank if
  // each host has consecutive ranks.
  int position(int rank) const { return positions_[rank]; }
  int rank_at(int position) const { return by_position_[position]; }
  int begin(int host) const { return begins_[host]; }
  int end(int host) const { return begins_[host + 1]; }

  // Ranks on this host, and a rank's index among them.
  int locals() const { return end(host()) - begin(host()); }
  int local(int rank) const { return positions_[rank] - begin(host()); }

  const std::vector<HostSegment>& segments() const { return segments_; }
  // The segments of the host that has most of them.
  int MostSegmentsOfAHost() const;
  int SegmentsOf(int host) const;

 private:
  const int rank_;
  std::vector<int> host_of_;
  std::vector<int> positions_;
  std::vector<int> by_position_;
  std::vector<int> begins_;  // by host, and the end
  std::vector<HostSegment> segments_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_HOSTS_HOST_LAYOUT_H_
