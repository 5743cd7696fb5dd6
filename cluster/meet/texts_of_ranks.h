// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_TEXTS_OF_RANKS_H_
#define CAPSTAN_CLUSTER_MEET_TEXTS_OF_RANKS_H_

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Returns the text of each of `size` ranks, by rank, of which `mine` is rank
// `rank`'s. Collective; throws what `store` throws. No other call may use keys
// that begin with `key`. Rank 0 collects the texts and publishes them in one
// value, in which equal texts stand once: if each rank read all, the store
// would send the square of their number. Rank 0 names the rank that is missing:
// the others wait a little longer than it does.
std::vector<std::string> TextsOfRanks(c10d::Store& store,
                                      const std::string& key, int rank,
                                      int size, const std::string& mine);

// The value that rank 0 publishes: a line with the number of different texts,
// and for each its bytes; the texts; and for each run of ranks that have the
// same text "RANKS INDEX".
std::string JoinTexts(const std::vector<std::string>& texts);
// INVALID_ARGUMENT unless `joined` has `size` texts.
absl::StatusOr<std::vector<std::string>> SplitTexts(absl::string_view joined,
                                                    int size);

// A text as a store's value, and back. Stores may reject empty values.
std::vector<uint8_t> ToStored(absl::string_view text);
std::string FromStored(const std::vector<uint8_t>& value);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_TEXTS_OF_RANKS_H_
