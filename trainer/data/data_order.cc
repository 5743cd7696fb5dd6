// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/random.h"
#include "trainer/data/data_loader.h"

namespace capstan {

void DataOrder::SamplesAt(int64_t position, absl::Span<int64_t> samples) const {
  while (!samples.empty()) {
    const int64_t epoch = position / size;
    const int64_t first = position % size;
    const size_t here = std::min<size_t>(size - first, samples.size());
    const uint64_t key =
        shuffle ? RandomKey(seed, absl::StrCat("epoch ", epoch)) : 0;
    for (size_t i = 0; i < here; ++i) {
      const int64_t index = first + static_cast<int64_t>(i);
      samples[i] = shuffle ? PermutedIndex(key, index, size) : index;
    }
    samples.remove_prefix(here);
    position += static_cast<int64_t>(here);
  }
}

}  // namespace capstan
