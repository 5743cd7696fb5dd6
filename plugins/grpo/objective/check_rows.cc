// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/check_rows.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/grpo/objective/rollouts.h"
#include "plugins/grpo/rewards/row_field.h"

namespace capstan::grpo {

absl::Status CheckRows(const DatasetReader& data, const Rewards& rewards) {
  constexpr int64_t kAtOnce = 64;
  const int64_t size = data.size();
  const int64_t rows = std::min(size, kMostCheckedRows);
  Batch batch;
  for (int64_t begin = 0; begin < rows; begin += kAtOnce) {
    std::vector<int64_t> indices;
    for (int64_t i = begin; i < std::min(begin + kAtOnce, rows); ++i) {
      indices.push_back(i * size / rows);
    }
    // A run may skip what can't be read.
    if (!data.Read(indices, &batch).ok()) continue;
    const std::vector<std::string> texts = RowTexts(batch);
    for (size_t i = 0; i < texts.size(); ++i) {
      const absl::Status status = rewards.CheckRow(texts[i]);
      if (FieldOf(status).has_value()) return status;
      if (!status.ok()) {
        return Annotate(status, absl::StrCat("prompt ", indices[i] + 1, " of ",
                                             size, ", ", Quoted(texts[i])));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace capstan::grpo
