// SPDX-License-Identifier: Apache-2.0
//
// What is exchanged when: a model in parts, one after another.
#ifndef CAPSTAN_STRATEGIES_DILOCO_PARTS_H_
#define CAPSTAN_STRATEGIES_DILOCO_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/strategy.h"

namespace capstan::diloco {

// Cuts the trained elements of `specs`, in the model's order, into `parts`
// equal parts. Returns for each the slices of `shards` that have it, in order
// and of at most `most` elements; they may have padding within. A part has the
// same elements however these are laid out.
std::vector<std::vector<OwnedSlice>> CutParts(
    const std::vector<ParameterSpec>& specs,
    absl::Span<const OptimizerShard> shards, int parts, int64_t most);

// Each part is exchanged once in `local_steps` steps, so that one is every
// local_steps / parts steps; the last one at the multiples of local_steps. The
// replicas take up the result `overlap` steps after the exchange has begun.
struct Rounds {
  int64_t local_steps = 1;
  int parts = 1;
  int64_t overlap = 0;

  // Whether the exchange of `part` begins after step `step`, from 1.
  bool Begins(int part, int64_t step) const;
  // Whether its result is taken up then.
  bool Ends(int part, int64_t step) const {
    return Begins(part, step - overlap);
  }
  // Whether it has begun by then and not ended.
  bool UnderWay(int part, int64_t step) const;
  // How many parts are under way at a time, at most.
  int most_under_way() const;
};

}  // namespace capstan::diloco

#endif  // CAPSTAN_STRATEGIES_DILOCO_PARTS_H_
