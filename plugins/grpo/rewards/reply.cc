// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/reply.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/optional.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/grpo/rewards/row_field.h"

namespace capstan::grpo {
namespace {

using Json = nlohmann::ordered_json;

// Unset if it is neither a number that a float can hold, nor null.
absl::optional<double> NumberOf(const Json& value) {
  if (value.is_null()) return std::nan("");
  if (!value.is_number()) return absl::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) <= std::numeric_limits<float>::max())) {
    return absl::nullopt;
  }
  return number;
}

std::string JsonString(absl::string_view text) {
  return JsonText(Json(std::string(text)));
}

}  // namespace

std::string AnswerJson(const Answer& answer) {
  // In JSON line ends are white space, wherever they are.
  const std::string row =
      absl::StrReplaceAll(answer.row, {{"\n", " "}, {"\r", " "}});
  const std::string turns =
      answer.messages.empty()
          ? ""
          : absl::StrCat(", \"turn\": ", answer.turn,
                         ", \"messages\": ", answer.messages);
  return absl::StrCat("{\"prompt\": ", JsonString(answer.prompt),
                      ", \"text\": ", JsonString(answer.text), turns,
                      ", \"row\": ", row.empty() ? "{}" : row, "}");
}

absl::StatusOr<double> RewardOfLine(absl::string_view line) {
  const Json value = ParseJson<Json>(line);
  absl::optional<double> number;
  if (value.is_object()) {
    const auto reward = value.find("reward");
    if (reward != value.end()) number = NumberOf(*reward);
  } else {
    number = NumberOf(value);
  }
  if (number.has_value()) return *number;
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(line),
      " isn't a number that a float can hold, {\"reward\": number} or null"));
}

absl::StatusOr<std::vector<double>> RewardsOfBody(absl::string_view body,
                                                  size_t count) {
  const Json json = ParseJson<Json>(body);
  const auto list = json.is_object() ? json.find("rewards") : json.end();
  if (!json.is_object() || list == json.end() || !list->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(body), " isn't {\"rewards\": [..]}"));
  }
  if (list->size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", list->size(), " rewards for ", count,
                     " answers in ", Quoted(body)));
  }
  std::vector<double> rewards;
  for (const Json& value : *list) {
    const absl::optional<double> number = NumberOf(value);
    if (!number.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "of ", count, " rewards number ", rewards.size() + 1, ", ",
          Quoted(JsonText(value)), ", isn't a number or null"));
    }
    rewards.push_back(*number);
  }
  return rewards;
}

}  // namespace capstan::grpo
