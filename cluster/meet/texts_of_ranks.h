// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_TEXTS_OF_RANKS_H_
#define CAPSTAN_CLUSTER_MEET_TEXTS_OF_RANKS_H_

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Returns the text of each of `size` ranks, by rank, of which `mine` is rank
// `rank`'s. Collective; throws what `store` throws. No other call may use keys
// that begin with `key`. Rank 0 collects the texts and publishes them in one
// value, in which equal texts of consecutive ranks stand once: if each rank
// read all, the store would send the square of their number.
std::vector<std::string> TextsOfRanks(c10d::Store& store,
                                      const std::string& key, int rank,
                                      int size, const std::string& mine);

// The value that rank 0 publishes: a line "RANKS BYTES" for each run of equal
// texts, with the text behind it.
std::string JoinTexts(const std::vector<std::string>& texts);
// INVALID_ARGUMENT unless `joined` has `size` texts.
absl::StatusOr<std::vector<std::string>> SplitTexts(absl::string_view joined,
                                                    int size);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_TEXTS_OF_RANKS_H_
