// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_CHECK_ROWS_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_CHECK_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "plugins/grpo/rewards/rewards.h"
#include "plugins/sdk/dataset.h"

namespace capstan::grpo {

// Of a data set with more rows as many are checked, at even distances, which
// takes about a tenth of a second; the others when they are rewarded.
inline constexpr int64_t kMostCheckedRows = 4096;

// Checks that the rows of prompts have what the rewards need. Errors quote the
// row; FieldErrors are Rewards::CheckRow's.
absl::Status CheckRows(const DatasetReader& data, const Rewards& rewards);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_CHECK_ROWS_H_
