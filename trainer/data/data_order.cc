// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "plugins/sdk/random.h"
#include "trainer/data/data_loader.h"

namespace capstan {

int64_t DataOrder::SampleAt(int64_t position) const {
  const int64_t index = position % size;
  if (!shuffle) return index;
  const int64_t epoch = position / size;
  return PermutedIndex(RandomKey(seed, absl::StrCat("epoch ", epoch)), index,
                       size);
}

}  // namespace capstan
