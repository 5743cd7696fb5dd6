// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/host_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

namespace capstan {

HostLayout::HostLayout(int rank, const std::vector<int>& hosts) : rank_(rank) {
  const int size = static_cast<int>(hosts.size());
  std::map<int, int> numbers;
  for (const int host : hosts) {
    const int next = static_cast<int>(numbers.size());
    host_of_.push_back(numbers.emplace(host, next).first->second);
  }
  by_position_.resize(size);
  std::iota(by_position_.begin(), by_position_.end(), 0);
  std::stable_sort(by_position_.begin(), by_position_.end(),
                   [&](int a, int b) { return host_of_[a] < host_of_[b]; });
  positions_.resize(size);
  begins_.resize(numbers.size());
  // Iterate backwards, since a host begins at the first of its positions.
  for (int p = size - 1; p >= 0; --p) {
    positions_[by_position_[p]] = p;
    begins_[host_of_[by_position_[p]]] = p;
  }
  begins_.push_back(size);
  for (int r = 0; r < size; ++r) {
    if (r == 0 || host_of_[r] != host_of_[r - 1]) {
      segments_.push_back({host_of_[r], r, r});
    }
    segments_.back().end = r + 1;
  }
}

int HostLayout::SegmentsOf(int host) const {
  return static_cast<int>(
      std::count_if(segments_.begin(), segments_.end(),
                    [&](const HostSegment& s) { return s.host == host; }));
}

int HostLayout::MostSegmentsOfAHost() const {
  int most = 0;
  for (int h = 0; h < hosts(); ++h) most = std::max(most, SegmentsOf(h));
  return most;
}

}  // namespace capstan
