// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_RANGE_INDEX_H_
#define CAPSTAN_TRAINER_CHECKPOINT_RANGE_INDEX_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/manifest.h"

namespace capstan {

// Finds the stored ranges that make up any others. Points into the manifest.
class RangeIndex {
 public:
  struct Piece {
    const ManifestFile* file = nullptr;
    const ManifestRange* range = nullptr;
    int64_t begin = 0;  // in the parameter
    int64_t length = 0;
  };

  explicit RangeIndex(const Manifest& manifest);

  // [begin, begin + length) of a parameter, in order; DATA_LOSS if an element
  // is missing.
  absl::StatusOr<std::vector<Piece>> Cover(const std::string& kind,
                                           const std::string& parameter,
                                           int64_t begin, int64_t length) const;

  // DATA_LOSS unless each element in [0, numel) is there exactly once.
  absl::Status CheckWhole(const std::string& kind, const std::string& parameter,
                          int64_t numel) const;

 private:
  // By (kind, parameter); ascending by begin.
  std::map<std::pair<std::string, std::string>, std::vector<Piece>> pieces_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_RANGE_INDEX_H_
