// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_ROW_FIELD_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_ROW_FIELD_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::grpo {

// A row's field: "answer", or one in another, "reward_model.ground_truth".
// INVALID_ARGUMENT, with the fields that there are, if it has none.
absl::StatusOr<nlohmann::ordered_json> RowField(absl::string_view row,
                                                absl::string_view field);

// A string as it is, anything else as JSON.
std::string TextOf(const nlohmann::ordered_json& value);

// `text` as a JSON string, which may be cut: to quote what others wrote in an
// error.
std::string Quoted(absl::string_view text);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_ROW_FIELD_H_
