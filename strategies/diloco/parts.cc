// SPDX-License-Identifier: Apache-2.0
#include "strategies/diloco/parts.h"

#include <algorithm>

namespace capstan::diloco {

std::vector<std::vector<OwnedSlice>> CutParts(
    const std::vector<ParameterSpec>& specs,
    absl::Span<const OptimizerShard> shards, int parts, int64_t most) {
  std::vector<int64_t> starts;  // of each parameter in the model's order
  int64_t total = 0;
  for (const ParameterSpec& spec : specs) {
    starts.push_back(total);
    if (spec.trainable) total += spec.numel();
  }
  std::vector<std::vector<OwnedSlice>> cut(parts);
  for (size_t s = 0; s < shards.size(); ++s) {
    int last = -1;  // the part of the last slice
    for (const ParameterRange& range : shards[s].ranges) {
      const int64_t first = starts[range.parameter] + range.begin;
      for (int p = 0; p < parts; ++p) {
        const int64_t begin = std::max(first, total * p / parts);
        const int64_t end =
            std::min(first + range.length, total * (p + 1) / parts);
        if (begin >= end) continue;
        const int64_t offset = range.offset - first;
        if (p == last && end + offset - cut[p].back().begin <= most) {
          cut[p].back().end = end + offset;
          continue;
        }
        for (int64_t at = begin; at < end; at += most) {
          cut[p].push_back({static_cast<int>(s), at + offset,
                            std::min(at + most, end) + offset});
        }
        last = p;
      }
    }
  }
  return cut;
}

bool Rounds::Begins(int part, int64_t step) const {
  return step > 0 &&
         step % local_steps == local_steps * (part + 1) / parts % local_steps;
}

bool Rounds::UnderWay(int part, int64_t step) const {
  for (int64_t begun = step; begun > step - overlap; --begun) {
    if (Begins(part, begun)) return true;
  }
  return false;
}

int Rounds::most_under_way() const {
  const int64_t count = (overlap * parts + local_steps - 1) / local_steps;
  return static_cast<int>(std::min<int64_t>(parts, count));
}

}  // namespace capstan::diloco
