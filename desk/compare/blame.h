// SPDX-License-Identifier: Apache-2.0
//
// compare --blame: where two runs part, by the digests that they wrote
// (train.digests).
#ifndef CAPSTAN_DESK_COMPARE_BLAME_H_
#define CAPSTAN_DESK_COMPARE_BLAME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace capstan {

// The first tensor whose bits differ. In a step gradients come before the
// optimizer's state, and that before the weights, as they are made; of several
// gradients the last parameter's, which backward makes first.
struct FirstDifference {
  int64_t step = 0;
  std::string kind;  // "gradient", "weight", or a state's name
  std::string parameter;
  int64_t tensors = 0;  // of that kind that differ in that step
};

// Unset if all digests of steps that both have are equal. The runs' folders;
// errors name the file, or a parameter that only one of them trains.
absl::StatusOr<absl::optional<FirstDifference>> FindFirstDifference(
    const std::string& folder, const std::string& reference);

struct ElementDifference {
  int64_t index = 0;  // in the tensor, row by row
  double value = 0.0;
  double reference = 0.0;
  // How many numbers of the dtype one is beyond the other (1: neighbours); the
  // difference for integers, -1 if one isn't a number.
  int64_t ulps = 0;
};

// What two runs kept of a tensor in that step (train.digests.keep).
struct TensorDifference {
  std::string dtype;
  int64_t numel = 0;
  int64_t different = 0;
  int64_t most_ulps = 0;
  std::vector<ElementDifference> first;  // at most kListed
  static constexpr int kListed = 8;
};
absl::StatusOr<TensorDifference> CompareKept(const std::string& folder,
                                             const std::string& reference,
                                             const FirstDifference& where);

// A sentence: what differs, and how to keep it (train.digests.keep), for runs
// that haven't.
std::string BlameText(const std::string& run, const std::string& reference,
                      const FirstDifference& where);

// A sentence and a table: what differs, where, and by how much.
std::string BlameText(const std::string& run, const std::string& reference,
                      const FirstDifference& where,
                      const TensorDifference& tensor);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_BLAME_H_
