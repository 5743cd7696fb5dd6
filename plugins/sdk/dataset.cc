// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/dataset.h"

namespace capstan {

const char kTokenCounts[] = "token_counts";

TokenTotals CountTokens(const Batch& batch) {
  TokenTotals totals;
  const int64_t positions = batch.at("input_ids").numel();
  const auto counts = batch.find(kTokenCounts);
  totals.tokens =
      counts == batch.end() ? positions : counts->second.sum().item<int64_t>();
  totals.padding = positions - totals.tokens;
  return totals;
}

}  // namespace capstan
